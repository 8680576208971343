-- One row: what happened after the engine in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: access, stat.
SELECT
  ts,  -- end of the scrape interval
  e2e_s / nullif(e2e_n, 0) - ttft_s / nullif(ttft_n, 0) - decode_s / nullif(decode_n, 0) AS output_s,  -- mean E2E less TTFT and decode (different requests in short intervals)
  process_cpu_s / nullif(dt_s, 0) AS cpu_cores,  -- CPU of the API server process, in cores
  generation_tokens / nullif(dt_s, 0) AS generation_tokens_per_s  -- tokens delivered a second
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
