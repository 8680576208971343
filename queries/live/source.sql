-- One row: something that is collected as it comes, with what came since $since.
WITH scraped AS (
  SELECT file_id, max(ts) FILTER (WHERE ok) AS last_ts, count(*) FILTER (WHERE ok) AS good, count(*) FILTER (WHERE NOT ok) AS failed
  FROM scrape WHERE timed AND ts >= $since GROUP BY file_id
),
sent AS (
  SELECT file_id, max(ts) AS last_ts, count(*) AS good FROM (
    SELECT file_id, end_ts AS ts FROM request WHERE end_ts >= $since
    UNION ALL SELECT file_id, ts FROM kv_event WHERE ts >= $since
    UNION ALL SELECT file_id, ts FROM stat WHERE ts >= $since
    UNION ALL SELECT file_id, ts FROM step WHERE ts >= $since
    UNION ALL SELECT file_id, ts FROM event WHERE ts >= $since
  ) GROUP BY file_id
)
SELECT
  f.file_id,
  f.bundle,                                    -- live, or prometheus and the address of one
  f.name,
  f.format,
  f.instance,
  coalesce(scraped.last_ts, sent.last_ts) AS last_ts,  -- of the newest success; NULL: none since then
  coalesce(scraped.good, sent.good, 0) AS good,        -- scrapes, or rows that were sent
  coalesce(scraped.failed, 0) AS failed,               -- scrapes without a usable answer
  f.rejected                                   -- lines that could not be read, ever
FROM source_file AS f LEFT JOIN scraped USING (file_id) LEFT JOIN sent USING (file_id)
WHERE f.bundle = 'live' OR starts_with(f.bundle, 'prometheus ')
ORDER BY f.bundle, f.format, f.name;
