-- One row: what a gauge did up to a kept instant, since the kept one before. Where it was thinned before, from what is known of it.
WITH stepped AS (
  SELECT o.series_id, i.into_ts, o.ts, o.value,
    lag(o.ts) OVER w AS from_ts, lag(o.value) OVER w AS before,
    g.seconds, g.low, g.mean, g.high
  FROM old_sample AS o
  JOIN quantity_series AS q USING (series_id)
  JOIN old_instant AS i ON i.instance = q.instance AND i.ts = o.ts
  LEFT JOIN gauge_span AS g ON g.series_id = o.series_id AND g.ts = o.ts
  WHERE q.kind = 'gauge' AND q.quantity <> 'process_start_ts'
  WINDOW w AS (PARTITION BY o.series_id ORDER BY o.ts)
), told AS (
  SELECT series_id, into_ts, seconds IS NOT NULL AS thin,
    coalesce(seconds, ts - from_ts) AS seconds,
    coalesce(low, least(value, before)) AS low,
    coalesce(mean, (value + before) / 2) AS mean,
    coalesce(high, greatest(value, before)) AS high
  FROM stepped
)
SELECT
  series_id,
  into_ts AS ts,
  sum(seconds) AS seconds,
  min(low) AS low,
  sum(mean * seconds) / sum(seconds) AS mean,
  max(high) AS high
FROM told
WHERE seconds > 0
GROUP BY series_id, into_ts
HAVING count(*) > 1 OR bool_or(thin);
