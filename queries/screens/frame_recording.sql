-- One row: a bundle that was loaded, newest last, with the servers in it and the span of what it measured.
WITH seen AS (
  SELECT file_id, instance, ts, timed FROM scrape WHERE ok
  UNION ALL SELECT file_id, NULL, ts, true FROM stat
  UNION ALL SELECT file_id, NULL, ts, true FROM step
), spanned AS (
  SELECT file_id, instance, min(ts) FILTER (timed) AS start_ts, max(ts) FILTER (timed) AS end_ts FROM seen GROUP BY ALL
)
SELECT
  f.bundle,
  max(f.file_id) AS last_file,
  min(s.start_ts) AS start_ts,  -- NULL: nothing in it carries a clock
  max(s.end_ts) AS end_ts,
  coalesce(list_sort(list(DISTINCT coalesce(s.instance, f.instance, ''))), []) AS instances  -- '' = not known
FROM source_file AS f JOIN spanned AS s USING (file_id)
GROUP BY f.bundle
ORDER BY last_file;
