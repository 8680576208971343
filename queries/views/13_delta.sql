-- One row: the increase of one counter between two scrapes. Restarts are handled here and nowhere else: after one, and
-- for a series that was not there at the scrape before, counting starts at 0. The first scrape of an instance is the
-- baseline and gives no row.
CREATE OR REPLACE VIEW delta AS
WITH point AS (
  -- of these series only: most of a recording is buckets, which 21_bucket.sql reads
  SELECT series_id, ts, max(value) AS value FROM every_sample
  WHERE series_id IN (SELECT series_id FROM quantity_series WHERE kind = 'counter') GROUP BY series_id, ts
), stepped AS (
  SELECT q.instance, q.engine, q.quantity, p.series_id, p.ts, p.value, e.epoch, e.prev_ts,
    lag(p.value) OVER w AS before, lag(e.epoch) OVER w AS before_epoch
  FROM point AS p
  JOIN quantity_series AS q USING (series_id)
  JOIN epoch AS e ON e.instance = q.instance AND e.ts = p.ts
  WHERE q.kind = 'counter'
  WINDOW w AS (PARTITION BY p.series_id ORDER BY p.ts)
)
SELECT
  instance, engine, quantity, series_id,
  ts,                                  -- end of the interval
  CASE WHEN before IS NULL OR before_epoch <> epoch OR value < before THEN value ELSE value - before END AS increase
FROM stepped
WHERE prev_ts IS NOT NULL;
