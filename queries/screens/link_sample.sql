-- One row: a sample of the series that a link's evidence is computed from, with the place where it stands. The newest $most.
-- Parameters: $low, $high (epoch seconds), $engines, $quantities, $most.
WITH placed AS (
  SELECT instance, ts, any_value(file_id) AS file_id, min(nth) AS nth, any_value(scrapes) AS scrapes
  FROM (SELECT *, row_number() OVER (PARTITION BY file_id ORDER BY rowid) AS nth, count(*) OVER (PARTITION BY file_id) AS scrapes FROM scrape)
  WHERE ok GROUP BY instance, ts
)
SELECT m.ts, q.instance, q.engine, s.name, s.labels, m.value, f.name AS file, p.nth, p.scrapes = f.lines AS by_line
FROM quantity_series AS q
JOIN series AS s USING (series_id)
JOIN every_sample AS m USING (series_id)
LEFT JOIN placed AS p ON p.instance IS NOT DISTINCT FROM q.instance AND p.ts = m.ts
LEFT JOIN source_file AS f USING (file_id)
WHERE m.ts > $low AND m.ts <= $high AND list_contains($quantities, q.quantity)
  AND (list_contains($engines, coalesce(q.instance, '') || '/' || q.engine)
    OR (q.engine = '' AND list_contains(list_transform($engines, lambda one: regexp_replace(one, '/[^/]*$', '')), coalesce(q.instance, ''))))
ORDER BY m.ts DESC, s.name, s.labels
LIMIT $most;
