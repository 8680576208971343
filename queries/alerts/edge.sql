-- One row: an edge of a latency histogram of the chosen engines.
SELECT DISTINCT
  list_position($families, regexp_replace(regexp_replace(name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:')) AS rank,  -- of its name in $families
  try_cast(json_extract_string(labels, '$.le') AS DOUBLE) AS le,      -- seconds; NULL: the infinite bucket
  json_extract_string(labels, '$.le') AS text                         -- as exposed
FROM series
WHERE name LIKE '%\_bucket' ESCAPE '\' AND list_contains($engines, coalesce(instance, '') || '/' || coalesce(engine, '0'))
  AND list_contains($families, regexp_replace(regexp_replace(name, '_bucket$', ''), '^(ray_)?vllm_', 'vllm:'))
ORDER BY rank, le;
