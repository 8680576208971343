-- One row: how long steps took in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: jit, rearrange, failed, death, step.
SELECT
  ts,  -- end of the scrape interval
  dt_s / nullif(step_n, 0) AS step_s,  -- seconds a step where the engine was busy throughout
  running AS running,  -- requests running at its end
  generation_tokens / nullif(dt_s, 0) AS generation_tokens_per_s  -- tokens generated a second
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
