-- One row: a slice of time, the chosen engines together, from scrapes. At most $points slices.
WITH chosen AS MATERIALIZED (
  SELECT *, coalesce(instance, '') || '/' || engine AS name
  FROM interval_row
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), scale AS (
  SELECT min(ts) AS first_ts,
    -- servers are scraped at different instants: two scrape intervals hold one of each
    greatest((max(ts) - min(ts)) / $points, CASE WHEN count(DISTINCT instance) > 1 THEN 2 * median(dt_s) ELSE 0 END, 1e-3) AS step
  FROM chosen
)
SELECT
  max(ts) AS ts,                                        -- the last scrape in the slice; a count of texts where timed is false
  bool_and(timed) AS timed,
  max(kv_usage_ratio) AS kv_usage_ratio,                -- of the fullest engine
  min(kv_usage_ratio) AS kv_usage_least_ratio,          -- of the emptiest
  sum(prefix_hit_tokens) / nullif(sum(prefix_query_tokens), 0) AS hit_ratio,  -- NULL: no prompts in the slice
  sum(preemptions) / nullif(sum(dt_s), 0) * count(DISTINCT name) AS preemptions_per_s,
  sum(preemptions) AS preemptions
FROM chosen, scale
GROUP BY floor((ts - first_ts) / step)
ORDER BY ts;
