-- One row: a slice of time with the bucket that holds the 95th percentile of TTFT and of ITL in it. Engines' buckets are added,
-- never their quantiles averaged. Parameters: $low, $high (epoch seconds), $engines, $points.
WITH chosen AS MATERIALIZED (
  SELECT ts, family, le, low_le, n
  FROM bucket
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
    AND family IN ('vllm:time_to_first_token_seconds', 'vllm:inter_token_latency_seconds', 'vllm:time_per_output_token_seconds')
), scale AS (
  SELECT min(ts) AS first_ts, greatest((max(ts) - min(ts)) / $points, 1e-3) AS step FROM chosen
), sliced AS (
  SELECT CASE family WHEN 'vllm:time_to_first_token_seconds' THEN 'ttft' ELSE 'itl' END AS target,
    floor((ts - first_ts) / step) AS slice, le, min(low_le) AS low, sum(n) AS n, max(ts) AS ts
  FROM chosen, scale GROUP BY ALL
), summed AS (
  SELECT target, slice, le, low, max(ts) OVER (PARTITION BY slice) AS ts,
    sum(n) OVER (PARTITION BY target, slice ORDER BY le) AS upto, sum(n) OVER (PARTITION BY target, slice) AS total
  FROM sliced
), found AS (
  SELECT target, slice, any_value(ts) AS ts, arg_min(low, le) AS low_s, min(le) AS high_s
  FROM summed WHERE total > 0 AND upto >= 0.95 * total GROUP BY target, slice
)
SELECT
  any_value(ts) AS ts,
  any_value(low_s) FILTER (target = 'ttft') AS ttft_low_s,    -- the bucket's edges; NULL: nothing observed in the slice
  any_value(CASE WHEN isinf(high_s) THEN low_s ELSE high_s END) FILTER (target = 'ttft') AS ttft_high_s,
  any_value(low_s) FILTER (target = 'itl') AS itl_low_s,
  any_value(CASE WHEN isinf(high_s) THEN low_s ELSE high_s END) FILTER (target = 'itl') AS itl_high_s
FROM found
GROUP BY slice
ORDER BY ts;
