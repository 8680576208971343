-- One row: a series of a router in front of engines, and the quantity it stands for.
-- Sources: production-stack src/vllm_router/services/metrics_service (vllm:... with a label `server`); Gateway API Inference
-- Extension, guide "Metrics & Observability", and llm-d, "Router Metrics" (the same families as inference_..., llm_d_router_epp_...
-- and llm_d_epp_..., often two of them at once: the newest is taken); Dynamo, "Metrics Catalog".
-- Left out: dynamo_frontend_queued_requests, which counts until the first token and so holds the prefill as well.
CREATE OR REPLACE VIEW router_series AS
WITH own AS (
  SELECT series_id, instance, name, labels,
    regexp_replace(name, '^(llm_d_epp|llm_d_router_epp|inference_extension|inference_objective|inference_pool)_', 'epp_') AS raw,
    CASE WHEN starts_with(name, 'llm_d_epp_') THEN 1 WHEN starts_with(name, 'llm_d_router_epp_') THEN 2 ELSE 3 END AS rank
  FROM series
  WHERE regexp_matches(name, '^(llm_d_(router_)?epp|inference_(extension|objective|pool)|dynamo_(frontend|component_router|router))_')
    OR (starts_with(name, 'vllm:') AND model_name IS NULL AND contains(labels, '"server": '))
    OR name IN ('vllm:num_incoming_requests_total', 'vllm:routing_decisions_total')
), known AS (
  SELECT * FROM (VALUES
    ('wait_s',        'epp_flow_control_request_queue_duration_seconds_sum',   'counter'),
    ('wait_n',        'epp_flow_control_request_queue_duration_seconds_count', 'counter'),
    ('queued',        'epp_flow_control_queue_size',                           'gauge'),
    ('queued',        'dynamo_frontend_router_queue_pending_requests',         'gauge'),
    ('hit_ratio_sum', 'epp_prefix_indexer_hit_ratio_sum',                      'counter'),
    ('hit_ratio_n',   'epp_prefix_indexer_hit_ratio_count',                    'counter'),
    ('hit_ratio_sum', 'dynamo_component_router_kv_hit_rate_sum',               'counter'),
    ('hit_ratio_n',   'dynamo_component_router_kv_hit_rate_count',             'counter'),
    ('ttft_s',        'epp_request_ttft_seconds_sum',                          'counter'),
    ('ttft_n',        'epp_request_ttft_seconds_count',                        'counter'),
    ('ttft_s',        'dynamo_frontend_time_to_first_token_seconds_sum',       'counter'),
    ('ttft_n',        'dynamo_frontend_time_to_first_token_seconds_count',     'counter'),
    ('e2e_s',         'epp_request_duration_seconds_sum',                      'counter'),
    ('e2e_n',         'epp_request_duration_seconds_count',                    'counter'),
    ('e2e_s',         'dynamo_frontend_request_duration_seconds_sum',          'counter'),
    ('e2e_n',         'dynamo_frontend_request_duration_seconds_count',        'counter'),
    ('e2e_s',         'vllm:request_latency_seconds_sum',                      'counter'),
    ('e2e_n',         'vllm:request_latency_seconds_count',                    'counter'),
    ('hit_tokens',    'vllm:gpu_prefix_cache_hits_total',                      'counter'),
    ('query_tokens',  'vllm:gpu_prefix_cache_queries_total',                   'counter'),
    ('in_flight',     'vllm:num_requests_running',                             'gauge')
  ) AS t(quantity, raw, kind)
)
SELECT
  own.series_id,
  own.instance,                        -- of the router
  CASE WHEN starts_with(own.name, 'vllm:') THEN 'production-stack' WHEN starts_with(own.name, 'dynamo_') THEN 'Dynamo' ELSE 'llm-d' END
    AS router,
  coalesce(json_extract_string(own.labels, '$.server'), '') AS target,  -- the engine it speaks of, as the router names it; '' = all
  known.quantity,                      -- NULL: none that is used
  known.kind
FROM own LEFT JOIN known USING (raw)
QUALIFY known.quantity IS NULL OR own.rank = min(own.rank) OVER (PARTITION BY own.instance, known.quantity);
