-- One row: the steps of one engine in the window, from iteration lines (--enable-logging-iteration-details); no row where there are none.
SELECT
  coalesce(instance, '') || '/' || engine AS name,
  count(*) AS steps,
  count(*) FILTER (dummy) AS dummies,                              -- steps without requests, that keep the ranks together
  quantile_cont(elapsed_s, 0.5) FILTER (NOT dummy) AS p50_s,       -- under asynchronous scheduling a residual wait, not the step
  quantile_cont(elapsed_s, 0.95) FILTER (NOT dummy) AS p95_s,
  quantile_cont(elapsed_s, 0.99) FILTER (NOT dummy) AS p99_s,
  avg(elapsed_s) FILTER (NOT dummy) AS mean_s
FROM step_row
WHERE (ts IS NULL OR (ts >= $low AND ts <= $high)) AND list_contains($engines, coalesce(instance, '') || '/' || engine)
GROUP BY instance, engine
ORDER BY instance, length(engine), engine;
