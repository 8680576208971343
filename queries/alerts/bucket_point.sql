-- One row: what a latency histogram of one engine counted between two scrapes, around a threshold. As views/13_delta and
-- 21_bucket, but of a span only: a view takes no bounds, and what is evaluated every few seconds must not read the whole store.
WITH base AS (
  -- the last scrape before the span is what the first one in it is compared with
  SELECT instance, min(ts) AS first_ts, coalesce(max(ts) FILTER (ts <= $low), '-infinity'::DOUBLE) AS from_ts
  FROM scrape WHERE ok AND timed AND ts <= $high
  GROUP BY instance HAVING max(ts) > $low
), bucketed AS (
  SELECT series_id, instance, coalesce(engine, '0') AS engine,
    list_position($families, regexp_replace(regexp_replace(name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:')) AS rank,
    CASE json_extract_string(labels, '$.le') WHEN '+Inf' THEN 'inf'::DOUBLE ELSE try_cast(json_extract_string(labels, '$.le') AS DOUBLE) END AS le
  FROM series
  WHERE name LIKE '%\_bucket' ESCAPE '\' AND list_contains($engines, coalesce(instance, '') || '/' || coalesce(engine, '0'))
), chosen AS (
  -- a renamed histogram is exposed under both names for a release: the first of $families is used
  SELECT * FROM bucketed WHERE rank IS NOT NULL QUALIFY rank = min(rank) OVER (PARTITION BY instance)
), started AS (
  SELECT s.instance, m.ts, abs(max(m.value) - lag(max(m.value)) OVER (PARTITION BY s.instance ORDER BY m.ts)) > 1 AS moved
  FROM every_sample AS m JOIN series AS s USING (series_id) JOIN base AS b USING (instance)
  WHERE s.name = 'process_start_time_seconds' AND m.ts >= b.from_ts AND m.ts <= $high AND m.ts >= $floor
  GROUP BY s.instance, m.ts
), point AS (
  SELECT c.instance, c.engine, c.le, m.series_id, m.ts, b.first_ts, max(m.value) AS value
  FROM every_sample AS m JOIN chosen AS c USING (series_id) JOIN base AS b USING (instance)
  WHERE m.ts >= b.from_ts AND m.ts <= $high AND m.ts >= $floor
  GROUP BY ALL
), stepped AS (
  SELECT p.*, coalesce(s.moved, false) AS moved, lag(p.value) OVER (PARTITION BY p.series_id ORDER BY p.ts) AS before
  FROM point AS p LEFT JOIN started AS s ON s.instance = p.instance AND s.ts = p.ts
), grown AS (
  SELECT instance, engine, ts, le, sum(CASE WHEN before IS NULL OR moved OR value < before THEN value ELSE value - before END) AS upto
  FROM stepped WHERE ts > $low AND ts > first_ts
  GROUP BY ALL
)
SELECT
  instance,
  engine,
  ts,                                                          -- end of the interval
  coalesce(max(upto) FILTER (le = 'inf'::DOUBLE), 0) AS total,  -- observations
  coalesce(max(le) FILTER (le <= $threshold), 0) AS low_s,     -- the edges around the threshold; high_s may be infinite
  coalesce(min(le) FILTER (le >= $threshold), 'inf'::DOUBLE) AS high_s,
  coalesce(arg_max(upto, le) FILTER (le <= $threshold), 0) AS upto_low,  -- observations up to these edges
  coalesce(arg_min(upto, le) FILTER (le >= $threshold), 0) AS upto_high
FROM grown
GROUP BY instance, engine, ts
ORDER BY ts, instance, engine;
