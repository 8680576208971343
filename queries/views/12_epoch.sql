-- One row: a successful scrape, with the number of restarts of the server before it. A restart is a process start time
-- that moved by more than a second, or (where that series is missing) a counter that fell.
CREATE OR REPLACE VIEW epoch AS
WITH fallen AS (
  SELECT q.instance, m.ts,
    bool_or(q.quantity = 'process_start_ts') AS has_start,
    bool_or(q.quantity = 'process_start_ts' AND abs(m.value - m.before) > 1) AS moved,
    bool_or(q.kind = 'counter' AND m.value < m.before) AS fell
  FROM (SELECT series_id, ts, value, lag(value) OVER (PARTITION BY series_id ORDER BY ts) AS before FROM sample) AS m
  JOIN quantity_series AS q USING (series_id)
  WHERE m.before IS NOT NULL
  GROUP BY q.instance, m.ts
), once AS (
  -- the same instant may be recorded twice (a bundle loaded in two forms)
  SELECT instance, ts, max(duration_s) AS duration_s, bool_and(timed) AS timed FROM scrape WHERE ok GROUP BY instance, ts
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
