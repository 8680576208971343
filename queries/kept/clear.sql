-- One row (of the temporary table `stale`): a part of which only what holds is kept any more.
DELETE FROM kept_rows.interval_row
WHERE ts > getvariable('low_ts') AND ts <= getvariable('high_ts') AND (instance, ceil(ts / 60)::BIGINT - 1) IN (SELECT instance, part FROM temp.stale WHERE kept_ts IS NULL);

DELETE FROM kept_rows.bucket_count
WHERE ts > getvariable('low_ts') AND ts <= getvariable('high_ts') AND (histogram_id, ceil(ts / 60)::BIGINT - 1) IN (
  SELECT h.histogram_id, s.part FROM temp.stale AS s JOIN kept_rows.histogram AS h USING (instance) WHERE s.kept_ts IS NULL
);

DELETE FROM kept_rows.shown
WHERE (histogram_id, part) IN (
  SELECT h.histogram_id, s.part FROM temp.stale AS s JOIN kept_rows.histogram AS h USING (instance) WHERE s.kept_ts IS NULL
);

DELETE FROM kept_rows.part WHERE (instance, part) IN (SELECT instance, part FROM temp.stale);
