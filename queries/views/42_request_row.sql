-- One row: a request, from its span and its client record joined by request id or trace id and server. Server seconds
-- (queue, prefill, decode, ttft, e2e) are the span's where there is one, else what the response said; client_* is what
-- the client's clock saw.
CREATE OR REPLACE VIEW request_row AS
WITH span AS (
  SELECT * FROM request WHERE source = 'span'
), client AS (
  SELECT * FROM request WHERE source = 'client'
), joined AS (
  SELECT s.*, c.file_id AS client_file, c.line AS client_line, c.arrival_ts AS sent_ts, c.ttft_s AS client_ttft_s,
    c.e2e_s AS client_e2e_s, c.cached_tokens AS client_cached, c.status AS client_status, c.chunk_s AS client_chunk
  FROM span AS s LEFT JOIN client AS c
    ON c.request_id = s.request_id AND (c.instance = s.instance OR c.instance IS NULL OR s.instance IS NULL)
  QUALIFY row_number() OVER (PARTITION BY s.file_id, s.line, s.request_id, s.arrival_ts ORDER BY abs(coalesce(c.arrival_ts, 0) - s.arrival_ts)) = 1
)
SELECT
  instance, service, request_id, trace_id,
  arrival_ts,                              -- at the API server
  arrival_ts + ttft_s AS first_token_ts,
  end_ts, prompt_tokens, output_tokens,
  coalesce(cached_tokens, client_cached) AS cached_tokens,
  ttft_s, queue_s, prefill_s, decode_s, e2e_s,
  sent_ts, client_ttft_s, client_e2e_s,
  coalesce(client_status, 'ok') AS status,
  client_chunk AS chunk_s,
  true AS has_span
FROM joined
UNION ALL BY NAME
SELECT
  instance, service, request_id, trace_id,
  arrival_ts, arrival_ts + ttft_s AS first_token_ts, end_ts, prompt_tokens, output_tokens, cached_tokens,
  NULL AS ttft_s, queue_s, prefill_s, decode_s, NULL AS e2e_s,
  arrival_ts AS sent_ts, ttft_s AS client_ttft_s, e2e_s AS client_e2e_s, coalesce(status, 'ok') AS status, chunk_s,
  false AS has_span
FROM client AS c
WHERE NOT EXISTS (SELECT 1 FROM span AS s WHERE s.request_id = c.request_id);
