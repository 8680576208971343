-- One row: a series that stands for a quantity, after renames are settled (one name per instance and quantity).
CREATE OR REPLACE VIEW quantity_series AS
SELECT
  s.series_id,
  s.instance,
  -- '' = the whole instance (process_*, http_*); the V0 engine (to 0.10) had no engine label: it is engine 0
  coalesce(s.engine, CASE WHEN s.name LIKE '%vllm%' THEN '0' ELSE '' END) AS engine,
  s.model_name,
  s.name,
  q.quantity,
  q.kind
FROM series AS s
JOIN quantity AS q
  -- Ray Serve and Dynamo write vllm_x for vllm:x
  ON q.raw = regexp_replace(s.name, '^(ray_)?vllm_', 'vllm:') AND (q.label = '' OR contains(s.labels, q.label))
-- a production-stack router exposes some of its engines' series under their own names, with their address as label `server`
WHERE s.model_name IS NOT NULL OR NOT contains(s.labels, '"server": ')
QUALIFY q.rank = min(q.rank) OVER (PARTITION BY s.instance, s.engine, q.quantity);
