-- One row: one scrape interval of one engine: increases of its counters, its gauges at both ends. NULL = not exposed.
-- Times are epoch seconds (a count of texts where the scrapes carry no time), counters keep the unit of their suffix.
CREATE OR REPLACE VIEW interval_row AS
WITH counted AS (
  SELECT instance, engine, ts,
    sum(increase) FILTER (quantity = 'ttft_s') AS ttft_s,
    sum(increase) FILTER (quantity = 'ttft_n') AS ttft_n,
    sum(increase) FILTER (quantity = 'queue_s') AS queue_s,
    sum(increase) FILTER (quantity = 'queue_n') AS queue_n,
    sum(increase) FILTER (quantity = 'prefill_s') AS prefill_s,
    sum(increase) FILTER (quantity = 'prefill_n') AS prefill_n,
    sum(increase) FILTER (quantity = 'decode_s') AS decode_s,
    sum(increase) FILTER (quantity = 'decode_n') AS decode_n,
    sum(increase) FILTER (quantity = 'e2e_s') AS e2e_s,
    sum(increase) FILTER (quantity = 'e2e_n') AS e2e_n,
    sum(increase) FILTER (quantity = 'itl_s') AS itl_s,
    sum(increase) FILTER (quantity = 'itl_n') AS itl_n,
    sum(increase) FILTER (quantity = 'prompt_tokens') AS prompt_tokens,
    sum(increase) FILTER (quantity = 'generation_tokens') AS generation_tokens,
    sum(increase) FILTER (quantity = 'computed_tokens') AS computed_tokens,
    sum(increase) FILTER (quantity = 'local_hit_tokens') AS local_hit_tokens,
    sum(increase) FILTER (quantity = 'external_hit_tokens') AS external_hit_tokens,
    sum(increase) FILTER (quantity = 'prefix_query_tokens') AS prefix_query_tokens,
    sum(increase) FILTER (quantity = 'prefix_hit_tokens') AS prefix_hit_tokens,
    sum(increase) FILTER (quantity = 'preemptions') AS preemptions,
    sum(increase) FILTER (quantity = 'step_n') AS step_n,
    sum(increase) FILTER (quantity = 'step_tokens') AS step_tokens,
    sum(increase) FILTER (quantity = 'request_prompt_tokens') AS request_prompt_tokens,
    sum(increase) FILTER (quantity = 'request_prompt_n') AS request_prompt_n,
    sum(increase) FILTER (quantity = 'request_output_tokens') AS request_output_tokens,
    sum(increase) FILTER (quantity = 'aborted_n') AS aborted_n,
    sum(increase) FILTER (quantity = 'draft_n') AS draft_n,
    sum(increase) FILTER (quantity = 'draft_tokens') AS draft_tokens,
    sum(increase) FILTER (quantity = 'accepted_tokens') AS accepted_tokens,
    sum(increase) FILTER (quantity = 'nixl_transfer_s') AS nixl_transfer_s,
    sum(increase) FILTER (quantity = 'nixl_transfer_n') AS nixl_transfer_n,
    sum(increase) FILTER (quantity = 'nixl_post_s') AS nixl_post_s,
    sum(increase) FILTER (quantity = 'nixl_bytes') AS nixl_bytes,
    sum(increase) FILTER (quantity = 'offload_load_s') AS offload_load_s,
    sum(increase) FILTER (quantity = 'offload_load_bytes') AS offload_load_bytes,
    sum(increase) FILTER (quantity = 'offload_load_n') AS offload_load_n,
    sum(increase) FILTER (quantity = 'block_lifetime_s') AS block_lifetime_s,
    sum(increase) FILTER (quantity = 'block_idle_s') AS block_idle_s,
    sum(increase) FILTER (quantity = 'block_reuse_gap_s') AS block_reuse_gap_s
  FROM delta WHERE engine <> '' GROUP BY ALL
), whole AS (
  SELECT instance, ts,
    sum(increase) FILTER (quantity = 'http_s') AS http_s,
    sum(increase) FILTER (quantity = 'http_n') AS http_n,
    sum(increase) FILTER (quantity = 'process_cpu_s') AS process_cpu_s
  FROM delta WHERE engine = '' GROUP BY ALL
), gauged AS (
  SELECT q.instance, q.engine, s.ts,
    sum(value) FILTER (quantity = 'running') AS running,
    sum(value) FILTER (quantity = 'waiting') AS waiting,
    sum(value) FILTER (quantity = 'deferred') AS deferred,
    max(value) FILTER (quantity = 'kv_usage_ratio') AS kv_usage_ratio
  FROM (
    SELECT series_id, ts, max(value) AS value FROM every_sample
    WHERE series_id IN (SELECT series_id FROM quantity_series WHERE kind = 'gauge') GROUP BY ALL
  ) AS s
  JOIN quantity_series AS q USING (series_id)
  WHERE q.kind = 'gauge' AND q.engine <> ''
  GROUP BY ALL
), spanned AS (
  -- days that are thinned: between two kept scrapes a gauge was at its mean, and once at its extremes
  SELECT q.instance, q.engine, s.ts,
    sum(mean) FILTER (quantity = 'running') AS running,
    sum(mean) FILTER (quantity = 'waiting') AS waiting,
    sum(mean) FILTER (quantity = 'deferred') AS deferred,
    max(mean) FILTER (quantity = 'kv_usage_ratio') AS kv_usage_ratio,
    sum(high) FILTER (quantity = 'running') AS running_high,
    sum(high) FILTER (quantity = 'waiting') AS waiting_high,
    max(high) FILTER (quantity = 'kv_usage_ratio') AS kv_usage_high_ratio
  FROM gauge_span AS s JOIN quantity_series AS q USING (series_id)
  WHERE q.engine <> '' AND s.ts >= coalesce(getvariable('from_ts'), '-infinity'::DOUBLE)
    AND s.ts <= coalesce(getvariable('to_ts'), 'infinity'::DOUBLE)
  GROUP BY ALL
), pair AS (
  SELECT DISTINCT instance, engine FROM quantity_series WHERE engine <> ''
)
SELECT
  p.instance,
  p.engine,
  e.ts,                    -- end of the interval
  e.ts - e.prev_ts AS dt_s,
  e.timed,                 -- false: no clock, dt_s means nothing
  e.epoch,                 -- restarts before this scrape
  e.restarted,             -- the server restarted inside this interval
  coalesce(m.running, g.running) AS running,
  coalesce(m.running, lag(g.running) OVER w) AS running_before,  -- at the start of the interval
  coalesce(m.waiting, g.waiting) AS waiting,
  coalesce(m.waiting, lag(g.waiting) OVER w) AS waiting_before,  -- at the start of the interval
  coalesce(m.deferred, g.deferred) AS deferred,
  coalesce(m.deferred, lag(g.deferred) OVER w) AS deferred_before,  -- at the start of the interval
  coalesce(m.kv_usage_ratio, g.kv_usage_ratio) AS kv_usage_ratio,
  coalesce(m.kv_usage_ratio, lag(g.kv_usage_ratio) OVER w) AS kv_usage_ratio_before,  -- at the start of the interval
  coalesce(m.running_high, g.running) AS running_high,  -- the highest that is known inside of the interval
  coalesce(m.waiting_high, g.waiting) AS waiting_high,
  coalesce(m.kv_usage_high_ratio, g.kv_usage_ratio) AS kv_usage_high_ratio,
  c.ttft_s,
  c.ttft_n,
  c.queue_s,
  c.queue_n,
  c.prefill_s,
  c.prefill_n,
  c.decode_s,
  c.decode_n,
  c.e2e_s,
  c.e2e_n,
  c.itl_s,
  c.itl_n,
  c.prompt_tokens,
  c.generation_tokens,
  c.computed_tokens,
  c.local_hit_tokens,
  c.external_hit_tokens,
  c.prefix_query_tokens,
  c.prefix_hit_tokens,
  c.preemptions,
  c.step_n,
  c.step_tokens,
  c.request_prompt_tokens,
  c.request_prompt_n,
  c.request_output_tokens,
  c.aborted_n,
  c.draft_n,
  c.draft_tokens,
  c.accepted_tokens,
  c.nixl_transfer_s,
  c.nixl_transfer_n,
  c.nixl_post_s,
  c.nixl_bytes,
  c.offload_load_s,
  c.offload_load_bytes,
  c.offload_load_n,
  c.block_lifetime_s,
  c.block_idle_s,
  c.block_reuse_gap_s,
  w.http_s,  -- of the whole instance
  w.http_n,
  w.process_cpu_s
FROM pair AS p
JOIN epoch AS e ON e.instance = p.instance
LEFT JOIN counted AS c ON c.instance = p.instance AND c.engine = p.engine AND c.ts = e.ts
LEFT JOIN whole AS w ON w.instance = p.instance AND w.ts = e.ts
LEFT JOIN gauged AS g ON g.instance = p.instance AND g.engine = p.engine AND g.ts = e.ts
LEFT JOIN spanned AS m ON m.instance = p.instance AND m.engine = p.engine AND m.ts = e.ts
WINDOW w AS (PARTITION BY p.instance, p.engine ORDER BY e.ts)
QUALIFY e.prev_ts IS NOT NULL;
