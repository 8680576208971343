-- One row: the finished request of this key that ended in the window, as request_slow has it.
-- Parameters: $low, $high (epoch seconds), $instances, $target, $key, $many.
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
WHERE key = $key
ORDER BY value_s DESC NULLS LAST
LIMIT 1;
