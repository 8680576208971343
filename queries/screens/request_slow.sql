-- One row: one of the $most slowest finished requests that ended in the window, by $target (ttft, tpot, e2e). Seconds are the
-- server's where it told them, else the client's. Parameters: $low, $high (epoch seconds), $instances, $target, $most, $many (servers: then a key names its own).
WITH timed AS (
  SELECT *,
    coalesce(request_id, trace_id, coalesce(instance, '') || '@' || arrival_ts) || CASE WHEN $many THEN '@' || coalesce(instance, '') ELSE '' END AS key,
    coalesce(ttft_s, client_ttft_s) AS first_s,
    coalesce(e2e_s, client_e2e_s) AS whole_s
  FROM request_row
  WHERE end_ts > $low AND end_ts <= $high AND list_contains($instances, coalesce(instance, '')) AND arrival_ts IS NOT NULL
), valued AS (
  SELECT *, CASE $target WHEN 'ttft' THEN first_s WHEN 'e2e' THEN whole_s
    ELSE coalesce(decode_s, whole_s - first_s) / nullif(output_tokens - 1, 0) END AS value_s
  FROM timed
)
SELECT
  key,                          -- request id, else trace id, else server and arrival
  instance, arrival_ts, end_ts, prompt_tokens, output_tokens, cached_tokens, status,
  first_s AS ttft_s, whole_s AS e2e_s,
  CASE WHEN first_s - queue_s - prefill_s < 0 THEN 0 ELSE first_s - queue_s - prefill_s END AS frontend_s,  -- NULL: the stages of this request are not known
  queue_s, prefill_s, decode_s,
  CASE WHEN whole_s - first_s - decode_s < 0 THEN 0 ELSE whole_s - first_s - decode_s END AS output_s,
  value_s                       -- of the target, seconds
FROM valued
WHERE value_s IS NOT NULL
ORDER BY value_s DESC, key
LIMIT $most;
