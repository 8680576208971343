-- One row: the increase of one counter series between two scrapes, as bucket_point, of a span only.
WITH base AS (
  SELECT instance, min(ts) AS first_ts, coalesce(max(ts) FILTER (ts <= $low), '-infinity'::DOUBLE) AS from_ts
  FROM scrape WHERE ok AND timed AND ts <= $high
  GROUP BY instance HAVING max(ts) > $low
), chosen AS (
  SELECT series_id, instance, labels, regexp_replace(name, '^(ray_)?vllm_', 'vllm:') AS name
  FROM series
  WHERE list_contains($names, regexp_replace(name, '^(ray_)?vllm_', 'vllm:'))
    -- what has no engine label is of the whole server
    AND (CASE WHEN engine IS NULL AND name NOT LIKE '%vllm%' THEN list_contains($instances, instance)
      ELSE list_contains($engines, coalesce(instance, '') || '/' || coalesce(engine, '0')) END)
), started AS (
  SELECT s.instance, m.ts, abs(max(m.value) - lag(max(m.value)) OVER (PARTITION BY s.instance ORDER BY m.ts)) > 1 AS moved
  FROM every_sample AS m JOIN series AS s USING (series_id) JOIN base AS b USING (instance)
  WHERE s.name = 'process_start_time_seconds' AND m.ts >= b.from_ts AND m.ts <= $high AND m.ts >= $floor
  GROUP BY s.instance, m.ts
), point AS (
  SELECT c.instance, c.name, c.labels, m.series_id, m.ts, b.first_ts, max(m.value) AS value
  FROM every_sample AS m JOIN chosen AS c USING (series_id) JOIN base AS b USING (instance)
  WHERE m.ts >= b.from_ts AND m.ts <= $high AND m.ts >= $floor
  GROUP BY ALL
), stepped AS (
  SELECT p.*, coalesce(s.moved, false) AS moved, lag(p.value) OVER (PARTITION BY p.series_id ORDER BY p.ts) AS before
  FROM point AS p LEFT JOIN started AS s ON s.instance = p.instance AND s.ts = p.ts
)
SELECT
  instance,
  name,    -- vllm:x, however it was exposed
  labels,  -- JSON
  ts,      -- end of the interval
  CASE WHEN before IS NULL OR moved OR value < before THEN value ELSE value - before END AS increase
FROM stepped
WHERE ts > $low AND ts > first_ts
ORDER BY ts, instance;
