-- One row: the increase of one histogram bucket between two scrapes (not cumulative over le: a bucket holds what is
-- at most `le` and above the edge before).
CREATE OR REPLACE VIEW bucket AS
WITH point AS (
  SELECT s.series_id, s.instance, coalesce(s.engine, CASE WHEN s.name LIKE '%vllm%' THEN '0' ELSE '' END) AS engine,
    regexp_replace(regexp_replace(s.name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:') AS family,
    CASE json_extract_string(s.labels, '$.le') WHEN '+Inf' THEN 'inf'::DOUBLE ELSE try_cast(json_extract_string(s.labels, '$.le') AS DOUBLE) END AS le,
    m.ts, max(m.value) AS value
  FROM every_sample AS m JOIN series AS s USING (series_id)
  WHERE s.name LIKE '%\_bucket' ESCAPE '\'
  GROUP BY ALL
), stepped AS (
  SELECT p.*, e.prev_ts, e.epoch, lag(p.value) OVER w AS before, lag(e.epoch) OVER w AS before_epoch
  FROM point AS p JOIN epoch AS e ON e.instance = p.instance AND e.ts = p.ts
  WINDOW w AS (PARTITION BY p.series_id ORDER BY p.ts)
), grown AS (
  SELECT instance, engine, family, le, ts,
    sum(CASE WHEN before IS NULL OR before_epoch <> epoch OR value < before THEN value ELSE value - before END) AS cumulative
  FROM stepped WHERE prev_ts IS NOT NULL
  GROUP BY ALL
)
SELECT
  instance, engine,
  family,                -- histogram name without _bucket
  le,                    -- upper edge
  ts,
  cumulative - coalesce(lag(cumulative) OVER (PARTITION BY instance, engine, family, ts ORDER BY le), 0) AS n
FROM grown;
