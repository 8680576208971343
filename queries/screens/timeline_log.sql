-- One row: a slice of time, the chosen engines together, from the stats lines of the log. At most $points slices.
WITH chosen AS MATERIALIZED (
  SELECT *, coalesce(instance, '') || '/' || engine AS name,
    -- lines without a time are told apart by their order
    coalesce(ts, row_number() OVER (PARTITION BY instance, engine ORDER BY file, line)) AS moment
  FROM stat_row
  WHERE (ts IS NULL OR (ts >= $low AND ts <= $high)) AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), scale AS (
  SELECT min(moment) AS first_at, greatest((max(moment) - min(moment)) / $points, 1e-3) AS step FROM chosen
), sliced AS (
  SELECT name, floor((moment - first_at) / step) AS slice, max(moment) AS moment, bool_and(ts IS NOT NULL) AS timed,
    max(running) AS running, max(waiting) AS waiting, max(deferred) AS deferred, max(kv_usage_ratio) AS kv_usage_ratio,
    avg(prefix_hit_ratio) AS hit_ratio, avg(prompt_tokens_per_s) AS prompt_per_s, avg(generation_tokens_per_s) AS generation_per_s
  FROM chosen, scale
  GROUP BY ALL
)
SELECT
  max(moment) AS ts,                                -- a count of lines where timed is false
  bool_and(timed) AS timed,
  false AS restarted,                           -- start lines are events
  sum(running) AS running,                      -- requests, over the engines
  sum(waiting) AS waiting,
  sum(deferred) AS deferred,
  max(waiting) AS waiting_busiest,              -- on the engine with most
  max(kv_usage_ratio) AS kv_usage_ratio,        -- of the fullest engine
  min(kv_usage_ratio) AS kv_usage_least_ratio,  -- of the emptiest
  avg(hit_ratio) AS hit_ratio,                  -- each over vLLM's last 1000 requests, not the slice
  sum(prompt_per_s) AS computed_per_s,          -- prompt tokens
  NULL::DOUBLE AS cached_per_s,
  sum(generation_per_s) AS generation_per_s,    -- tokens
  NULL::DOUBLE AS ttft_s,                       -- request seconds stand in no log line
  NULL::DOUBLE AS itl_s,
  NULL::DOUBLE AS e2e_s,
  NULL::DOUBLE AS queue_s,
  NULL::DOUBLE AS finished_per_s,
  NULL::DOUBLE AS step_s,
  NULL::DOUBLE AS preemptions
FROM sliced
GROUP BY slice
ORDER BY ts;
