-- One row: a sample that is kept of a day that is thinned: the last value of a series up to a kept instant.
SELECT
  o.series_id,
  i.into_ts AS ts,
  arg_max(o.value, o.ts) AS value
FROM old_sample AS o
JOIN series AS s USING (series_id)
JOIN old_instant AS i ON i.instance = s.instance AND i.ts = o.ts
GROUP BY o.series_id, i.into_ts
ORDER BY o.series_id, ts;
