-- One row: an engine that the store knows, with its model.
SELECT DISTINCT
  instance,
  coalesce(engine, '0') AS engine,  -- the V0 engine (to 0.10) had no engine label: it is engine 0
  model_name                        -- NULL: its series carry none
FROM series
WHERE instance IS NOT NULL AND regexp_matches(name, '^(ray_)?vllm[:_]') AND (engine IS NOT NULL OR model_name IS NOT NULL)
UNION
-- request records without any scrape: their server, '' where nothing says which
SELECT DISTINCT coalesce(instance, ''), '0', NULL FROM request WHERE coalesce(instance, '') NOT IN (SELECT instance FROM series WHERE instance IS NOT NULL)
  AND (instance IS NOT NULL OR NOT EXISTS (SELECT 1 FROM series WHERE instance IS NOT NULL))
ORDER BY ALL;
