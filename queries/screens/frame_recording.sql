-- One row: a bundle in the store, the one to show first last: the newest, by when it was loaded or, live, by what it measured.
SELECT
  bundle,
  start_ts,  -- NULL: nothing in it carries a clock
  end_ts,
  list_transform(instances, lambda one: coalesce(one, '')) AS instances  -- '' = not known
FROM recording
ORDER BY greatest(loaded_at, coalesce(end_ts, 0)), bundle;
