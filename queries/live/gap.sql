-- One row: a time since $since in which scrapes of a live source are missing: nothing is known of it.
WITH seen AS (
  SELECT s.file_id, ts, lead(ts) OVER (PARTITION BY s.file_id ORDER BY ts) AS next_ts
  FROM scrape AS s JOIN source_file AS f USING (file_id)
  WHERE ok AND timed AND ts >= $since AND (f.bundle = 'live' OR starts_with(f.bundle, 'prometheus '))
),
usual AS (SELECT file_id, median(next_ts - ts) AS every_s FROM seen GROUP BY file_id)
SELECT
  file_id,
  ts AS start_ts,      -- the last scrape before it
  next_ts AS end_ts    -- the first after it
FROM seen JOIN usual USING (file_id)
WHERE next_ts - ts > greatest(3 * every_s, 2.0)  -- one that is missing or late is no gap
ORDER BY file_id, ts DESC;
