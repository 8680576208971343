-- One row: one engine in a slice of time, from scrapes. At most $points slices, the same for all engines.
WITH chosen AS MATERIALIZED (
  SELECT *, coalesce(instance, '') || '/' || engine AS name, running > 0 AND running_before > 0 AS busy
  FROM interval_row
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), scale AS (
  SELECT min(ts) AS first_ts,
    -- servers are scraped at different instants: two scrape intervals hold one of each
    greatest((max(ts) - min(ts)) / $points, CASE WHEN count(DISTINCT instance) > 1 THEN 2 * median(dt_s) ELSE 0 END, 1e-3) AS step
  FROM chosen
)
SELECT
  floor((ts - first_ts) / step) AS slice,
  name,                                        -- "host:port/engine"
  max(ts) AS ts,                               -- the last scrape in the slice; a count of texts where timed is false
  bool_and(timed) AS timed,
  max(running) AS running,                     -- requests, the most at a scrape
  max(waiting) AS waiting,
  max(kv_usage_ratio) AS kv_usage_ratio,
  -- while it ran requests at both ends of an interval; NULL: no steps counted
  sum(dt_s) FILTER (busy AND step_n > 0) / nullif(sum(step_n) FILTER (busy), 0) AS step_s
FROM chosen, scale
GROUP BY ALL
ORDER BY slice, name;
