-- One row: a sample that the rows of a chunk are computed from: those in it, and of each series the last before it. Views that follow
-- counters look back one scrape that shows the series, and restarts before the chunk are known already (temporary table epoch).
CREATE OR REPLACE TEMP TABLE every_sample AS
WITH last AS (
  SELECT m.series_id, max(m.ts) AS ts
  FROM temp.every_sample AS m JOIN series AS s USING (series_id) JOIN temp.epoch AS e ON e.instance = s.instance AND e.ts = m.ts
  WHERE m.ts <= getvariable('low_ts')
  GROUP BY m.series_id
)
SELECT * FROM temp.every_sample WHERE ts > getvariable('low_ts')
UNION ALL
SELECT m.* FROM temp.every_sample AS m SEMI JOIN last USING (series_id, ts);
