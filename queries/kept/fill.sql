-- One row (of the temporary table `stale`): a part that is computed by the views, and kept. The temporary tables of samples, scrapes,
-- names and epochs that lie before the views of these names hold just what is needed. Where what is kept of a part holds up to
-- kept_ts, it is what came after.
INSERT INTO kept_rows.interval_row
SELECT i.* FROM main.interval_row AS i JOIN temp.stale AS t ON t.instance = i.instance AND t.part = ceil(i.ts / 60)::BIGINT - 1
WHERE i.ts > getvariable('low_ts') AND i.ts <= getvariable('high_ts') AND i.ts > coalesce(t.kept_ts, '-infinity'::DOUBLE)
  AND i.ts <= t.upto_ts;  -- what came since the seal was made belongs to the next turn

CREATE OR REPLACE TEMP TABLE grown AS
SELECT b.*, t.part FROM main.bucket AS b JOIN temp.stale AS t ON t.instance = b.instance AND t.part = ceil(b.ts / 60)::BIGINT - 1
WHERE b.ts > getvariable('low_ts') AND b.ts <= getvariable('high_ts') AND b.ts > coalesce(t.kept_ts, '-infinity'::DOUBLE)
  AND b.ts <= t.upto_ts AND b.le IS NOT NULL;

CREATE OR REPLACE TEMP TABLE shape AS
SELECT instance, engine, family, part, list(le ORDER BY le) AS edges, min(first_ts) AS first_ts, max(last_ts) AS last_ts
FROM (SELECT instance, engine, family, part, le, min(ts) AS first_ts, max(ts) AS last_ts FROM temp.grown GROUP BY ALL)
GROUP BY instance, engine, family, part;

INSERT INTO kept_rows.histogram
SELECT (SELECT coalesce(max(histogram_id), 0) FROM kept_rows.histogram) + row_number() OVER (), instance, engine, family, edges
FROM (SELECT DISTINCT instance, engine, family, edges FROM temp.shape) AS s
ANTI JOIN kept_rows.histogram AS h USING (instance, engine, family, edges);

INSERT INTO kept_rows.shown
SELECT h.histogram_id, s.part, s.first_ts, s.last_ts FROM temp.shape AS s JOIN kept_rows.histogram AS h USING (instance, engine, family, edges);

INSERT INTO kept_rows.bucket_count
SELECT h.histogram_id, g.ts, g.le, g.low_le, g.n
FROM temp.grown AS g
JOIN temp.shape AS s USING (instance, engine, family, part)
JOIN kept_rows.histogram AS h USING (instance, engine, family, edges)
WHERE g.n <> 0;

INSERT INTO kept_rows.part SELECT instance, part, seal, upto_ts FROM temp.stale WHERE seal IS NOT NULL;
