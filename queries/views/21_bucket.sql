-- One row: the increase of one histogram bucket between two scrapes (not cumulative over le: a bucket holds what is
-- at most `le` and above the edge before).
CREATE OR REPLACE VIEW bucket AS
WITH named AS (
  SELECT series_id, instance, coalesce(engine, CASE WHEN name LIKE '%vllm%' THEN '0' ELSE '' END) AS engine,
    regexp_replace(regexp_replace(name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:') AS family,
    CASE json_extract_string(labels, '$.le') WHEN '+Inf' THEN 'inf'::DOUBLE ELSE try_cast(json_extract_string(labels, '$.le') AS DOUBLE) END AS le
  FROM series
  WHERE name LIKE '%\_bucket' ESCAPE '\'
), chosen AS (
  -- a histogram has a number here, that of its first series: rows are grouped by numbers, not by words
  SELECT *, min(series_id) OVER (PARTITION BY instance, engine, family) AS histogram FROM named
), point AS (
  SELECT series_id, ts, max(value) AS value FROM every_sample WHERE series_id IN (SELECT series_id FROM chosen) GROUP BY ALL
), stepped AS (
  SELECT c.histogram, c.le, p.ts, p.value, e.prev_ts, e.epoch, lag(p.value) OVER w AS before, lag(e.epoch) OVER w AS before_epoch
  FROM point AS p JOIN chosen AS c USING (series_id) JOIN epoch AS e ON e.instance = c.instance AND e.ts = p.ts
  WINDOW w AS (PARTITION BY p.series_id ORDER BY p.ts)
), grown AS (
  SELECT histogram, le, ts,
    sum(CASE WHEN before IS NULL OR before_epoch <> epoch OR value < before THEN value ELSE value - before END) AS cumulative
  FROM stepped WHERE prev_ts IS NOT NULL
  GROUP BY ALL
), apart AS (
  SELECT histogram, le, ts, coalesce(lag(le) OVER w, 0) AS low_le, cumulative - coalesce(lag(cumulative) OVER w, 0) AS n
  FROM grown WINDOW w AS (PARTITION BY histogram, ts ORDER BY le)
)
SELECT
  c.instance, c.engine,
  c.family,                -- histogram name without _bucket
  a.le,                    -- upper edge
  a.low_le,                -- the edge before; 0 below the first
  a.ts,
  a.n
FROM apart AS a JOIN (SELECT DISTINCT histogram, instance, engine, family FROM chosen) AS c USING (histogram);
