-- One row: prompt work and who waited in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: budget, step, stat.
SELECT
  ts,  -- end of the scrape interval
  coalesce(computed_tokens, prompt_tokens) / nullif(dt_s, 0) AS computed_tokens_per_s,  -- prompt tokens computed a second
  step_tokens / nullif(step_n, 0) AS tokens_per_step,  -- tokens a step, to hold against the token budget
  waiting AS waiting,  -- requests waiting at its end
  dt_s / nullif(step_n, 0) AS step_s  -- seconds a step where the engine was busy throughout
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
