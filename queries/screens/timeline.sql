-- One row: a slice of time, the chosen engines together, from scrapes. At most $points slices; a slice keeps the largest
-- waiting, running and KV use in it (spikes survive), rates and means are of all its seconds and requests.
WITH chosen AS MATERIALIZED (
  SELECT *, coalesce(instance, '') || '/' || engine AS name
  FROM interval_row
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), scale AS (
  SELECT min(ts) AS first_ts,
    -- servers are scraped at different instants: two scrape intervals hold one of each
    greatest((max(ts) - min(ts)) / $points, CASE WHEN count(DISTINCT instance) > 1 THEN 2 * median(dt_s) ELSE 0 END, 1e-3) AS step
  FROM chosen
), sliced AS (
  SELECT name, floor((ts - first_ts) / step) AS slice,
    max(ts) AS ts, sum(dt_s) AS dt_s, bool_and(timed) AS timed, bool_or(restarted) AS restarted,
    max(running_high) AS running, max(waiting_high) AS waiting, max(deferred) AS deferred, max(kv_usage_high_ratio) AS kv_usage_ratio,
    sum(prefix_hit_tokens) AS hit, sum(prefix_query_tokens) AS query,
    sum(prompt_tokens) AS prompt, sum(computed_tokens) AS computed, sum(generation_tokens) AS generation,
    sum(ttft_s) AS ttft_s, sum(ttft_n) AS ttft_n, sum(itl_s) AS itl_s, sum(itl_n) AS itl_n,
    sum(dt_s) FILTER (running > 0 AND running_before > 0) AS busy_s, sum(step_n) FILTER (running > 0 AND running_before > 0) AS step_n,
    sum(queue_s) AS queue_s, sum(e2e_s) AS e2e_s, sum(e2e_n) AS e2e_n, sum(preemptions) AS preemptions
  FROM chosen, scale
  GROUP BY ALL
)
SELECT
  max(ts) AS ts,                                    -- the last scrape in the slice; a count of texts where timed is false
  bool_and(timed) AS timed,
  bool_or(restarted) AS restarted,
  sum(running) AS running,                          -- requests, over the engines
  sum(waiting) AS waiting,
  sum(deferred) AS deferred,
  max(waiting) AS waiting_busiest,                  -- on the engine with most
  max(kv_usage_ratio) AS kv_usage_ratio,            -- of the fullest engine
  min(kv_usage_ratio) AS kv_usage_least_ratio,      -- of the emptiest
  sum(hit) / nullif(sum(query), 0) AS hit_ratio,    -- NULL: no prompts in the slice
  sum(coalesce(computed, prompt) / dt_s) AS computed_per_s,  -- prompt tokens; before vLLM 0.16 those from a cache are in it
  sum((prompt - computed) / dt_s) AS cached_per_s,  -- prompt tokens; NULL: not exported
  sum(generation / dt_s) AS generation_per_s,       -- tokens
  sum(ttft_s) / nullif(sum(ttft_n), 0) AS ttft_s,   -- means, from sums; NULL: no request had its first token in the slice
  sum(itl_s) / nullif(sum(itl_n), 0) AS itl_s,
  sum(e2e_s) / nullif(sum(e2e_n), 0) AS e2e_s,
  sum(queue_s) / nullif(sum(e2e_n), 0) AS queue_s,  -- of the requests that finished in the slice
  sum(e2e_n / dt_s) AS finished_per_s,
  sum(busy_s) / nullif(sum(step_n), 0) AS step_s,   -- seconds a step where the engines were busy throughout
  sum(preemptions) AS preemptions
FROM sliced
GROUP BY slice
ORDER BY ts;
