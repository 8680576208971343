-- One row: a file of the store, the newest first: what it measured, how often, and where nothing came for long.
WITH scraped AS (
  SELECT file_id, count(*) FILTER (ok) AS scrapes, count(*) FILTER (NOT ok) AS failed, min(ts) FILTER (timed) AS first_ts,
    max(ts) FILTER (timed AND ok) AS last_ts, median(step) FILTER (timed AND ok) AS every_s, max(step) FILTER (timed AND ok) AS gap_s,
    arg_max(before, step) FILTER (timed AND ok) AS gap_ts, count(*) FILTER (timed AND ok AND step > 3 * usual) AS gaps
  FROM (
    SELECT *, median(step) OVER (PARTITION BY file_id) AS usual
    FROM (
      SELECT file_id, ok, timed, ts, lag(ts) OVER w AS before, ts - lag(ts) OVER w AS step
      FROM scrape WINDOW w AS (PARTITION BY file_id, instance, ok ORDER BY ts)
    )
  )
  GROUP BY file_id
), told AS (
  SELECT file_id, min(ts) AS first_ts, max(ts) AS last_ts
  FROM (
    SELECT file_id, min(ts) AS ts FROM stat GROUP BY 1 UNION ALL SELECT file_id, max(ts) FROM stat GROUP BY 1
    UNION ALL SELECT file_id, min(ts) FROM every_step GROUP BY 1 UNION ALL SELECT file_id, max(ts) FROM every_step GROUP BY 1
    UNION ALL SELECT file_id, min(ts) FROM every_kv_event GROUP BY 1 UNION ALL SELECT file_id, max(ts) FROM every_kv_event GROUP BY 1
    UNION ALL SELECT file_id, min(coalesce(arrival_ts, end_ts)) FROM request GROUP BY 1 UNION ALL SELECT file_id, max(end_ts) FROM request GROUP BY 1
  ) GROUP BY 1
)
SELECT
  f.bundle, f.name,
  f.format,                                          -- NULL: not recognised
  f.instance,                                        -- NULL: not known, or several
  f.bytes, f.lines, f.rejected,
  coalesce(s.first_ts, t.first_ts) AS first_ts,      -- NULL: nothing in it carries a clock
  coalesce(s.last_ts, t.last_ts) AS last_ts,
  s.scrapes,                                         -- that were answered; NULL: no scrapes
  s.failed,
  s.every_s,                                         -- usual seconds between two
  s.gaps,                                            -- times that more than three times as long passed
  s.gap_s, s.gap_ts                                  -- the longest, and its start
FROM source_file AS f LEFT JOIN scraped AS s USING (file_id) LEFT JOIN told AS t USING (file_id)
ORDER BY f.loaded_at DESC, f.file_id DESC
LIMIT $most;
