-- One row: an engine that was observed in the window.
WITH seen AS (
  SELECT instance, engine FROM interval_row WHERE ts > $low AND ts <= $high AND (running IS NOT NULL OR waiting IS NOT NULL OR e2e_n IS NOT NULL)
  UNION SELECT instance, engine FROM stat_row WHERE ts IS NULL OR (ts >= $low AND ts <= $high)
  UNION SELECT instance, engine FROM step_row WHERE ts IS NULL OR (ts >= $low AND ts <= $high)
  -- a single scrape makes no interval
  UNION SELECT q.instance, q.engine FROM quantity_series AS q
    WHERE q.engine <> '' AND q.instance IN (SELECT instance FROM scrape WHERE ok AND ts >= $low AND ts <= $high GROUP BY instance HAVING count(DISTINCT ts) = 1)
)
SELECT
  instance,  -- NULL: the server is not known
  engine
FROM seen
WHERE list_contains($instances, coalesce(instance, ''))
ORDER BY instance, length(engine), engine;
