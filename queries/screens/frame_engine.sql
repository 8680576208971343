-- One row: an engine that was observed in the window. From the scrapes and lines themselves: it stands at the start of every page.
WITH seen AS (
  SELECT DISTINCT q.instance, q.engine FROM quantity_series AS q
  WHERE q.engine <> '' AND q.instance IN (SELECT instance FROM scrape WHERE ok AND ts >= $low AND ts <= $high)
  UNION SELECT instance, engine FROM stat_row WHERE ts IS NULL OR (ts >= $low AND ts <= $high)
  UNION SELECT instance, engine FROM step_row WHERE ts IS NULL OR (ts >= $low AND ts <= $high)
)
SELECT
  instance,  -- NULL: the server is not known
  engine,
  (SELECT any_value(s.model_name) FROM series AS s WHERE s.instance IS NOT DISTINCT FROM seen.instance AND coalesce(s.engine, '0') = seen.engine
    AND s.model_name IS NOT NULL) AS model  -- NULL: only its log is there
FROM seen
WHERE list_contains($instances, coalesce(instance, ''))
ORDER BY instance, length(engine), engine;
