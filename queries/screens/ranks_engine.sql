-- One row: one engine over the window, from scrapes. NULL where nothing exports it.
SELECT
  coalesce(instance, '') || '/' || engine AS name,
  sum(running * dt_s) / nullif(sum(dt_s) FILTER (running IS NOT NULL), 0) AS running,   -- requests, mean over time
  sum(waiting * dt_s) / nullif(sum(dt_s) FILTER (waiting IS NOT NULL), 0) AS waiting,
  max(waiting) AS waiting_peak,
  sum(e2e_n) AS finished,                                                               -- requests
  sum(prompt_tokens) AS prompt_tokens,
  sum(generation_tokens) AS generation_tokens,
  max(kv_usage_ratio) AS kv_peak_ratio,
  sum(step_n) AS steps,
  sum(dt_s) FILTER (running > 0 AND running_before > 0 AND step_n > 0)
    / nullif(sum(step_n) FILTER (running > 0 AND running_before > 0), 0) AS step_s      -- while it ran requests
FROM interval_row
WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
GROUP BY instance, engine
ORDER BY instance, length(engine), engine;
