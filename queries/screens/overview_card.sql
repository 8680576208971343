-- One row: sums and levels of the window over the chosen engines, from scrapes; NULL where nothing exports it.
WITH chosen AS (
  SELECT * FROM interval_row
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), lasted AS (
  SELECT max(ts) - min(ts - dt_s) AS span_s FROM chosen WHERE timed
)
SELECT
  any_value(span_s) AS span_s,                                        -- seconds from the first scrape to the last
  sum(ttft_s) / nullif(sum(ttft_n), 0) AS ttft_s,                     -- means, in seconds
  sum(itl_s) / nullif(sum(itl_n), 0) AS itl_s,
  sum(e2e_s) / nullif(sum(e2e_n), 0) AS e2e_s,
  sum(e2e_n) AS finished,                                             -- requests
  sum(generation_tokens) AS generation_tokens,
  sum(prompt_tokens) AS prompt_tokens,
  sum(prefix_hit_tokens) / nullif(sum(prefix_query_tokens), 0) AS hit_ratio,
  sum(preemptions) AS preemptions,
  max(kv_usage_high_ratio) AS kv_peak_ratio,
  sum(kv_usage_ratio * dt_s) FILTER (timed) / nullif(sum(dt_s) FILTER (timed AND kv_usage_ratio IS NOT NULL), 0) AS kv_mean_ratio,
  max(running_high) AS running_peak,
  max(waiting_high) AS waiting_peak,
  arg_max(ts, waiting_high) FILTER (timed) AS waiting_peak_ts,
  -- share of one engine's blocks that one running request holds
  sum(kv_usage_ratio * dt_s) FILTER (timed AND running > 0) / nullif(sum(running * dt_s) FILTER (timed AND running > 0 AND kv_usage_ratio IS NOT NULL), 0) AS kv_per_request_ratio,
  count(DISTINCT (instance, engine)) AS engines
FROM chosen, lasted;
