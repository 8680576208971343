-- One row: the increase of one histogram bucket over a window (not cumulative over le), summed from the increases between
-- scrapes as view `bucket` has them: for a day of many engines, where that view would hold every bucket at every scrape.
-- Parameters: families (histogram names without _bucket), low and high (epoch seconds, low excluded).
CREATE OR REPLACE MACRO bucket_sum(families, low, high) AS TABLE
WITH chosen AS (
  SELECT series_id, instance, coalesce(engine, CASE WHEN name LIKE '%vllm%' THEN '0' ELSE '' END) AS engine,
    regexp_replace(regexp_replace(name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:') AS family,
    CASE json_extract_string(labels, '$.le') WHEN '+Inf' THEN 'inf'::DOUBLE ELSE try_cast(json_extract_string(labels, '$.le') AS DOUBLE) END AS le
  FROM series
  WHERE name LIKE '%\_bucket' ESCAPE '\' AND list_contains(families, regexp_replace(regexp_replace(name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:'))
), point AS (
  SELECT series_id, ts, max(value) AS value FROM every_sample
  WHERE series_id IN (SELECT series_id FROM chosen) AND ts <= high GROUP BY ALL
), stepped AS (
  SELECT p.series_id, p.ts, p.value, e.prev_ts, e.epoch,
    lag(p.value) OVER w AS before, lag(e.epoch) OVER w AS before_epoch
  FROM point AS p JOIN chosen AS c USING (series_id) JOIN epoch AS e ON e.instance = c.instance AND e.ts = p.ts
  WINDOW w AS (PARTITION BY p.series_id ORDER BY p.ts)
), risen AS (
  SELECT series_id,
    sum(CASE WHEN before IS NULL OR before_epoch <> epoch OR value < before THEN value ELSE value - before END) AS increase
  FROM stepped WHERE prev_ts IS NOT NULL AND ts > low GROUP BY series_id
), grown AS (
  SELECT instance, engine, family, le, sum(increase) AS cumulative FROM risen JOIN chosen USING (series_id) GROUP BY ALL
)
SELECT
  instance, engine,
  family,                -- histogram name without _bucket
  le,                    -- upper edge
  cumulative - coalesce(lag(cumulative) OVER (PARTITION BY instance, engine, family ORDER BY le), 0) AS n
FROM grown;
