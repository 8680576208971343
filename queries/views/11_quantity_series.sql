-- One row: a series that stands for a quantity, after renames are settled (one name per instance and quantity).
CREATE OR REPLACE VIEW quantity_series AS
SELECT
  s.series_id,
  s.instance,
  coalesce(s.engine, '') AS engine,  -- '' = the whole instance (process_*, http_*)
  s.model_name,
  s.name,
  q.quantity,
  q.kind
FROM series AS s
JOIN quantity AS q
  -- Ray Serve and Dynamo write vllm_x for vllm:x
  ON q.raw = regexp_replace(s.name, '^(ray_)?vllm_', 'vllm:') AND (q.label = '' OR contains(s.labels, q.label))
QUALIFY q.rank = min(q.rank) OVER (PARTITION BY s.instance, s.engine, q.quantity);
