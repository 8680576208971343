-- What was computed once of the views interval_row and bucket, in a file of its own (attached as kept_rows) that can be taken away
-- at any time. Rows are kept by parts: a minute of one server.

-- One row: a part that is kept, with the seal of what it was computed from (seal.sql).
CREATE TABLE kept_rows.part (
  instance VARCHAR NOT NULL,
  part BIGINT NOT NULL,               -- minutes since 1970: scrapes after its start, up to its end
  seal UBIGINT NOT NULL,
  upto_ts DOUBLE NOT NULL             -- its last scrape then: what came after it is not kept yet
);

-- One row: as in view interval_row, except that `epoch` counts restarts of the span that was computed together.
CREATE TABLE kept_rows.interval_row AS SELECT * FROM interval_row LIMIT 0;

-- One row: a histogram of one engine, with these edges (another version of vLLM has others).
CREATE TABLE kept_rows.histogram (
  histogram_id INTEGER NOT NULL,
  instance VARCHAR NOT NULL,
  engine VARCHAR NOT NULL,
  family VARCHAR NOT NULL,
  edges DOUBLE[] NOT NULL             -- upper, in order
);

-- One row: a histogram that was exposed in a part, observed or not. A part that was kept while it lasted has several.
CREATE TABLE kept_rows.shown (
  histogram_id INTEGER NOT NULL,
  part BIGINT NOT NULL,
  first_ts DOUBLE NOT NULL,           -- of the ends of its intervals in the part
  last_ts DOUBLE NOT NULL
);

-- One row: as in view bucket, of the buckets in which something was observed.
CREATE TABLE kept_rows.bucket_count (
  histogram_id INTEGER NOT NULL,
  ts DOUBLE NOT NULL,
  le DOUBLE NOT NULL,
  low_le DOUBLE NOT NULL,
  n DOUBLE NOT NULL
);

-- One row: as in view bucket, without those in which nothing was observed.
CREATE VIEW kept_rows.bucket AS
SELECT h.instance, h.engine, h.family, c.le, c.low_le, c.ts, c.n
FROM kept_rows.bucket_count AS c JOIN kept_rows.histogram AS h USING (histogram_id);

-- One row: as in bucket_sum.
CREATE MACRO kept_rows.bucket_sum(families, low, high) AS TABLE
WITH asked AS (
  SELECT * FROM kept_rows.histogram WHERE list_contains(families, family) AND histogram_id IN (
    SELECT histogram_id FROM kept_rows.shown WHERE last_ts > low AND first_ts <= high
  )
), edge AS (
  SELECT DISTINCT instance, engine, family, unnest(edges) AS le FROM asked
), counted AS (
  SELECT a.instance, a.engine, a.family, c.le, sum(c.n) AS n
  FROM kept_rows.bucket_count AS c JOIN asked AS a USING (histogram_id)
  WHERE c.ts > low AND c.ts <= high
  GROUP BY ALL
)
SELECT e.instance, e.engine, e.family, e.le, coalesce(c.n, 0) AS n
FROM edge AS e LEFT JOIN counted AS c USING (instance, engine, family, le);
