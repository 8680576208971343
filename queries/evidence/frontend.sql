-- One row: how busy the API server was in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: api_servers, access, stat.
SELECT
  ts,  -- end of the scrape interval
  process_cpu_s / nullif(dt_s, 0) AS cpu_cores,  -- CPU of the API server process, in cores; 1 is the most of one event loop
  ttft_s / nullif(ttft_n, 0) - queue_s / nullif(queue_n, 0) - prefill_s / nullif(prefill_n, 0) AS frontend_s,  -- mean TTFT less queue and prefill (different requests in short intervals)
  http_s / nullif(http_n, 0) AS http_s  -- mean HTTP duration of the instance
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
