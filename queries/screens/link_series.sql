-- One row: a series as vLLM exposes it, over the window, that a link's evidence is computed from: the first and the last
-- sample with the places where they stand. Parameters: $low, $high (epoch seconds), $engines, $quantities.
WITH chosen AS (
  SELECT q.series_id, q.instance, q.engine, q.quantity, q.kind, s.name, s.labels
  FROM quantity_series AS q JOIN series AS s USING (series_id)
  WHERE list_contains($quantities, q.quantity)
    AND (list_contains($engines, coalesce(q.instance, '') || '/' || q.engine)
      OR (q.engine = '' AND list_contains(list_transform($engines, lambda one: regexp_replace(one, '/[^/]*$', '')), coalesce(q.instance, ''))))
), summed AS (
  SELECT c.*, count(*) AS samples, min(m.ts) AS first_ts, max(m.ts) AS last_ts, arg_min(m.value, m.ts) AS first_value,
    arg_max(m.value, m.ts) AS last_value, min(m.value) AS least, max(m.value) AS most, arg_max(m.ts, m.value) AS most_ts
  FROM chosen AS c JOIN every_sample AS m USING (series_id)
  WHERE m.ts > $low AND m.ts <= $high
  GROUP BY ALL
), placed AS (
  SELECT instance, ts, any_value(file_id) AS file_id, min(nth) AS nth, any_value(scrapes) AS scrapes
  FROM (SELECT *, row_number() OVER (PARTITION BY file_id ORDER BY rowid) AS nth, count(*) OVER (PARTITION BY file_id) AS scrapes FROM scrape)
  WHERE ok GROUP BY instance, ts
)
SELECT
  s.instance, s.engine,       -- '' = of the whole server
  s.name,                     -- as exposed
  s.labels,                   -- JSON
  s.quantity, s.kind,         -- our word for it; counter | gauge
  s.samples, s.first_ts, s.last_ts, s.first_value, s.last_value, s.least, s.most,
  f.name AS file,             -- where the first and the last sample stand; NULL: nothing was scraped then
  a.nth AS first_nth,         -- which scrape of the file: its line, where by_line
  b.nth AS last_nth,
  s.most_ts, p.nth AS most_nth,
  b.scrapes = f.lines AS by_line
FROM summed AS s
LEFT JOIN placed AS a ON a.instance IS NOT DISTINCT FROM s.instance AND a.ts = s.first_ts
LEFT JOIN placed AS b ON b.instance IS NOT DISTINCT FROM s.instance AND b.ts = s.last_ts
LEFT JOIN placed AS p ON p.instance IS NOT DISTINCT FROM s.instance AND p.ts = s.most_ts
LEFT JOIN source_file AS f ON f.file_id = b.file_id
ORDER BY row_number() OVER (PARTITION BY s.quantity ORDER BY s.most DESC, s.instance, s.engine), list_position($quantities, s.quantity), s.name
LIMIT 200;
