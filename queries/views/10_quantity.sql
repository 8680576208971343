-- One row: a raw series name (with one label value, where the name alone does not say it) and the quantity it stands for.
-- Where a version exposes two names of one quantity (a rename, both kept for a release), the lower rank is used.
CREATE OR REPLACE VIEW quantity AS
SELECT
  quantity,    -- canonical name, unit as suffix (house.md section 7)
  raw,         -- name as exposed
  label,       -- JSON fragment that must stand in series.labels; '' = any
  kind,        -- counter | gauge
  rank         -- preference among names of one quantity
FROM (VALUES
  ('ttft_s',                 'vllm:time_to_first_token_seconds_sum',            '', 'counter', 1),
  ('ttft_n',                 'vllm:time_to_first_token_seconds_count',          '', 'counter', 1),
  ('queue_s',                'vllm:request_queue_time_seconds_sum',             '', 'counter', 1),
  ('queue_n',                'vllm:request_queue_time_seconds_count',           '', 'counter', 1),
  ('prefill_s',              'vllm:request_prefill_time_seconds_sum',           '', 'counter', 1),
  ('prefill_n',              'vllm:request_prefill_time_seconds_count',         '', 'counter', 1),
  ('decode_s',               'vllm:request_decode_time_seconds_sum',            '', 'counter', 1),
  ('decode_n',               'vllm:request_decode_time_seconds_count',          '', 'counter', 1),
  ('e2e_s',                  'vllm:e2e_request_latency_seconds_sum',            '', 'counter', 1),
  ('e2e_n',                  'vllm:e2e_request_latency_seconds_count',          '', 'counter', 1),
  ('itl_s',                  'vllm:inter_token_latency_seconds_sum',            '', 'counter', 1),
  ('itl_s',                  'vllm:time_per_output_token_seconds_sum',          '', 'counter', 2),
  ('itl_n',                  'vllm:inter_token_latency_seconds_count',          '', 'counter', 1),
  ('itl_n',                  'vllm:time_per_output_token_seconds_count',        '', 'counter', 2),
  ('prompt_tokens',          'vllm:prompt_tokens_total',                        '', 'counter', 1),
  ('generation_tokens',      'vllm:generation_tokens_total',                    '', 'counter', 1),
  ('computed_tokens',        'vllm:prompt_tokens_by_source_total', '"source": "local_compute"',        'counter', 1),
  ('local_hit_tokens',       'vllm:prompt_tokens_by_source_total', '"source": "local_cache_hit"',      'counter', 1),
  ('external_hit_tokens',    'vllm:prompt_tokens_by_source_total', '"source": "external_kv_transfer"', 'counter', 1),
  ('prefix_query_tokens',    'vllm:prefix_cache_queries_total',                 '', 'counter', 1),
  ('prefix_query_tokens',    'vllm:gpu_prefix_cache_queries_total',             '', 'counter', 2),
  ('prefix_hit_tokens',      'vllm:prefix_cache_hits_total',                    '', 'counter', 1),
  ('prefix_hit_tokens',      'vllm:gpu_prefix_cache_hits_total',                '', 'counter', 2),
  ('preemptions',            'vllm:num_preemptions_total',                      '', 'counter', 1),
  ('step_n',                 'vllm:iteration_tokens_total_count',               '', 'counter', 1),
  ('step_tokens',            'vllm:iteration_tokens_total_sum',                 '', 'counter', 1),
  ('request_prompt_tokens',  'vllm:request_prompt_tokens_sum',                  '', 'counter', 1),
  ('request_prompt_n',       'vllm:request_prompt_tokens_count',                '', 'counter', 1),
  ('request_output_tokens',  'vllm:request_generation_tokens_sum',              '', 'counter', 1),
  ('aborted_n',              'vllm:request_success_total', '"finished_reason": "abort"', 'counter', 1),
  ('draft_n',                'vllm:spec_decode_num_drafts_total',               '', 'counter', 1),
  ('draft_tokens',           'vllm:spec_decode_num_draft_tokens_total',         '', 'counter', 1),
  ('accepted_tokens',        'vllm:spec_decode_num_accepted_tokens_total',      '', 'counter', 1),
  ('nixl_transfer_s',        'vllm:nixl_xfer_time_seconds_sum',                 '', 'counter', 1),
  ('nixl_transfer_n',        'vllm:nixl_xfer_time_seconds_count',               '', 'counter', 1),
  ('nixl_post_s',            'vllm:nixl_post_time_seconds_sum',                 '', 'counter', 1),
  ('nixl_bytes',             'vllm:nixl_bytes_transferred_sum',                 '', 'counter', 1),
  ('offload_load_s',         'vllm:kv_offload_load_time_seconds_sum',           '', 'counter', 1),
  ('offload_load_s',         'vllm:kv_offload_load_time_total',                 '', 'counter', 2),
  ('offload_load_bytes',     'vllm:kv_offload_load_bytes_total',                '', 'counter', 1),
  ('offload_load_n',         'vllm:kv_offload_load_size_count',                 '', 'counter', 1),
  ('block_lifetime_s',       'vllm:kv_block_lifetime_seconds_sum',             '', 'counter', 1),
  ('block_idle_s',           'vllm:kv_block_idle_before_evict_seconds_sum',    '', 'counter', 1),
  ('block_reuse_gap_s',      'vllm:kv_block_reuse_gap_seconds_sum',            '', 'counter', 1),
  ('http_s',                 'http_request_duration_highr_seconds_sum',         '', 'counter', 1),
  ('http_n',                 'http_request_duration_highr_seconds_count',       '', 'counter', 1),
  ('process_cpu_s',          'process_cpu_seconds_total',                       '', 'counter', 1),
  ('process_start_ts',       'process_start_time_seconds',                      '', 'gauge',   1),
  ('running',                'vllm:num_requests_running',                       '', 'gauge',   1),
  ('waiting',                'vllm:num_requests_waiting',                       '', 'gauge',   1),
  ('deferred',               'vllm:num_requests_waiting_by_reason', '"reason": "deferred"', 'gauge', 1),
  ('kv_usage_ratio',         'vllm:kv_cache_usage_perc',                        '', 'gauge',   1),
  ('kv_usage_ratio',         'vllm:gpu_cache_usage_perc',                       '', 'gauge',   2)
) AS t(quantity, raw, label, kind, rank);
