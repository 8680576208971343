-- One row: a request of the same server that overlaps one span of time, the one asked for among them; the nearest $most.
-- Parameters: $key, $instance, $low, $high (epoch seconds), $most, $many.
SELECT
  coalesce(request_id, trace_id, coalesce(instance, '') || '@' || arrival_ts) || CASE WHEN $many THEN '@' || coalesce(instance, '') ELSE '' END AS key,
  arrival_ts, end_ts, prompt_tokens, output_tokens, cached_tokens, status, trace_id,
  coalesce(ttft_s, client_ttft_s) AS ttft_s, coalesce(e2e_s, client_e2e_s) AS e2e_s,
  CASE WHEN ttft_s - queue_s - prefill_s < 0 THEN 0 ELSE ttft_s - queue_s - prefill_s END AS frontend_s, queue_s, prefill_s, decode_s,
  CASE WHEN e2e_s - ttft_s - decode_s < 0 THEN 0 ELSE e2e_s - ttft_s - decode_s END AS output_s,
  has_span
FROM request_row
WHERE coalesce(instance, '') = $instance AND arrival_ts < $high AND end_ts > $low
ORDER BY coalesce(request_id, trace_id, coalesce(instance, '') || '@' || arrival_ts) || CASE WHEN $many THEN '@' || coalesce(instance, '') ELSE '' END <> $key, abs(arrival_ts - $low)
LIMIT $most;
