-- One row: batch and token latency in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: graph, step, stat.
SELECT
  ts,  -- end of the scrape interval
  running AS running,  -- requests running at its end
  itl_s / nullif(itl_n, 0) AS itl_s,  -- mean gap between outputs of one request
  greatest(generation_tokens - coalesce(ttft_n, 0), 0) / nullif(step_n, 0) AS together  -- sequences decoding in a step
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
