-- One row: a sample that the rows of a chunk are computed from: those in it, and of each series the last before it. Views that follow
-- counters look back one scrape that shows the series, and restarts before the chunk are known already (temporary table epoch).
CREATE OR REPLACE TEMP TABLE every_sample AS
WITH ended AS (
  SELECT instance, max(ts) AS ts FROM temp.epoch WHERE ts <= getvariable('low_ts') GROUP BY instance
), beside AS MATERIALIZED (
  -- nearly every series is shown at the last scrape of its server. Only for the others is all that was before looked through
  SELECT m.* FROM (SELECT * FROM temp.every_sample WHERE ts IN (SELECT ts FROM ended)) AS m
  JOIN series AS s USING (series_id) JOIN ended AS e ON e.instance = s.instance AND e.ts = m.ts
), others AS MATERIALIZED (
  SELECT * FROM temp.every_sample WHERE ts <= getvariable('low_ts') AND series_id NOT IN (SELECT series_id FROM beside)
), earlier AS (
  SELECT o.series_id, max(o.ts) AS ts
  FROM others AS o JOIN series AS s USING (series_id) JOIN temp.epoch AS e ON e.instance = s.instance AND e.ts = o.ts
  GROUP BY o.series_id
)
SELECT * FROM temp.every_sample WHERE ts > getvariable('low_ts')
UNION ALL
SELECT * FROM beside
UNION ALL
SELECT o.* FROM others AS o SEMI JOIN earlier USING (series_id, ts);
