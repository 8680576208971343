-- One row: requests in flight on the chosen engines at a scrape of their server.
SELECT
  s.instance,
  m.ts,
  sum(m.value) AS requests  -- running and waiting
FROM every_sample AS m JOIN series AS s USING (series_id)
WHERE regexp_replace(s.name, '^(ray_)?vllm_', 'vllm:') IN ('vllm:num_requests_running', 'vllm:num_requests_waiting')
  AND list_contains($engines, coalesce(s.instance, '') || '/' || coalesce(s.engine, '0'))
  AND m.ts > $low AND m.ts <= $high
GROUP BY s.instance, m.ts
ORDER BY m.ts;
