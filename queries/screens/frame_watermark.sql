-- One row: how much the store holds. Whatever is added changes it, so what was computed from less is computed again.
SELECT
  (SELECT count(*) FROM source_file) AS files,
  (SELECT coalesce(max(file_id), 0) FROM source_file) AS last_file,  -- counts alone would miss one out, one in
  (SELECT count(*) FROM scrape) AS scrapes,
  (SELECT count(*) FROM every_sample) AS samples,
  (SELECT count(*) FROM stat) AS stats,
  (SELECT count(*) FROM every_step) AS steps,
  (SELECT count(*) FROM event) AS events,
  (SELECT count(*) FROM request) AS requests,
  (SELECT count(*) FROM every_kv_event) AS kv_events;
