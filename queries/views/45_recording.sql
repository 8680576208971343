-- One row: a bundle that was loaded, with the servers and the span of time that it covers.
CREATE OR REPLACE VIEW recording AS
WITH seen AS (
  SELECT file_id, instance, min(ts) AS start_ts, max(ts) AS end_ts FROM scrape WHERE ok AND timed GROUP BY ALL
  UNION ALL
  SELECT s.file_id, f.instance, min(s.ts), max(s.ts) FROM stat AS s JOIN source_file AS f USING (file_id) GROUP BY ALL
  UNION ALL
  SELECT s.file_id, f.instance, min(s.ts), max(s.ts) FROM every_step AS s JOIN source_file AS f USING (file_id) GROUP BY ALL
  UNION ALL
  SELECT file_id, instance, NULL, NULL FROM scrape WHERE ok AND NOT timed GROUP BY ALL
), written AS (
  -- what a server wrote last, when it died, ends the span, too; its first lines do not begin it
  SELECT f.bundle, max(e.ts) AS last_ts FROM event AS e JOIN source_file AS f USING (file_id) GROUP BY f.bundle
)
SELECT
  f.bundle,
  list_sort(list_distinct(list(seen.instance))) AS instances,
  min(seen.start_ts) AS start_ts,      -- NULL: nothing in it carries a clock
  CASE WHEN max(seen.end_ts) IS NOT NULL THEN greatest(max(seen.end_ts), any_value(w.last_ts)) END AS end_ts,
  min(f.loaded_at) AS loaded_at,
  count(DISTINCT f.file_id) AS files   -- files with time series
FROM seen JOIN source_file AS f USING (file_id) LEFT JOIN written AS w USING (bundle)
GROUP BY f.bundle;
