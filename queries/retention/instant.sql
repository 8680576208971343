-- One row: an instant at which a server was scraped on a day that is thinned, and the instant that stands for it from now on:
-- the last in each $seconds. Both sides of a restart, of a fall of any counter and of a hole are kept, so that every increase
-- between kept instants is what it was.
WITH counter AS (
  SELECT series_id, instance, name = 'process_start_time_seconds' AS is_start
  FROM series WHERE regexp_matches(name, '(_total|_sum|_count|_bucket)$') OR name = 'process_start_time_seconds'
), stepped AS (
  SELECT c.instance, c.is_start, o.ts, o.value, lag(o.value) OVER (PARTITION BY o.series_id ORDER BY o.ts) AS before
  FROM old_sample AS o JOIN counter AS c USING (series_id)
), broken AS (
  SELECT DISTINCT instance, ts FROM stepped WHERE CASE WHEN is_start THEN abs(value - before) > 1 ELSE value < before END
), seen AS (
  SELECT DISTINCT s.instance, o.ts FROM old_sample AS o JOIN series AS s USING (series_id)
), placed AS (
  SELECT seen.instance, seen.ts, b.ts IS NOT NULL AS broke,
    lag(seen.ts) OVER w AS prev_ts, lead(seen.ts) OVER w AS next_ts,
    coalesce(lead(b.ts IS NOT NULL) OVER w, false) AS breaks_next
  FROM seen LEFT JOIN broken AS b ON b.instance = seen.instance AND b.ts = seen.ts
  WINDOW w AS (PARTITION BY seen.instance ORDER BY seen.ts)
), judged AS (
  SELECT instance, ts,
    broke OR breaks_next OR prev_ts IS NULL OR next_ts IS NULL
      OR floor(next_ts / $seconds) <> floor(ts / $seconds) OR next_ts - ts > $seconds OR ts - prev_ts > $seconds AS kept
  FROM placed
)
SELECT
  instance,
  ts,
  min(ts) FILTER (kept) OVER (PARTITION BY instance ORDER BY ts ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS into_ts
FROM judged;
