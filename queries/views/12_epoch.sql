-- One row: a successful scrape, with the number of restarts of the server before it. A restart is a process start time
-- that moved by more than a second, or (where that series is missing) a counter that fell.
CREATE OR REPLACE VIEW epoch AS
WITH once AS (
  -- the same instant may be recorded twice (a bundle loaded in two forms); texts without a time are out of use where the
  -- same server has timed scrapes. Of a span only its own, as every_sample has it: what a page reads must not grow with the days
  SELECT instance, ts, max(duration_s) AS duration_s, bool_and(timed) AS timed
  FROM scrape
  WHERE ok AND ts >= coalesce(getvariable('from_ts'), '-infinity'::DOUBLE) AND ts <= coalesce(getvariable('to_ts'), 'infinity'::DOUBLE)
  GROUP BY instance, ts
  QUALIFY bool_and(timed) OR NOT bool_or(bool_and(timed)) OVER (PARTITION BY instance)
), covered AS (
  -- servers that say at each of these scrapes when they started: whether a counter fell does not matter then
  SELECT o.instance
  FROM once AS o LEFT JOIN (
    SELECT DISTINCT q.instance, m.ts FROM every_sample AS m JOIN quantity_series AS q USING (series_id) WHERE q.quantity = 'process_start_ts'
  ) AS s ON s.instance = o.instance AND s.ts = o.ts
  WHERE o.instance IS NOT NULL
  GROUP BY o.instance HAVING count(s.ts) = count(*)
), stepped AS (
  SELECT q.instance, q.quantity, q.kind, m.ts, m.value,
    lag(m.value) OVER (PARTITION BY m.series_id, q.quantity ORDER BY m.ts) AS before
  FROM every_sample AS m
  JOIN quantity_series AS q USING (series_id)
  JOIN once AS o ON o.instance = q.instance AND o.ts = m.ts
  WHERE q.quantity = 'process_start_ts' OR (q.kind = 'counter' AND q.instance NOT IN (SELECT instance FROM covered))
), fallen AS (
  SELECT instance, ts,
    bool_or(quantity = 'process_start_ts') AS has_start,
    bool_or(quantity = 'process_start_ts' AND abs(value - before) > 1) AS moved,
    bool_or(kind = 'counter' AND value < before) AS fell
  FROM stepped
  WHERE before IS NOT NULL
  GROUP BY instance, ts
)
SELECT
  instance,
  ts,
  duration_s,
  timed,
  lag(ts) OVER w AS prev_ts,                                       -- NULL: the first scrape, the baseline
  coalesce(CASE WHEN has_start THEN moved ELSE fell END, false) AS restarted,
  sum((coalesce(CASE WHEN has_start THEN moved ELSE fell END, false))::INT) OVER w AS epoch
FROM once LEFT JOIN fallen USING (instance, ts)
WINDOW w AS (PARTITION BY instance ORDER BY ts);
