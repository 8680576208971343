-- One row: a slice of time with the bucket that holds the 95th percentile of TTFT and of ITL in it. Engines' buckets are added,
-- never their quantiles averaged. Parameters: $low, $high (epoch seconds), $engines, $points.
WITH chosen AS (
  SELECT ts, CASE family WHEN 'vllm:time_to_first_token_seconds' THEN 'ttft' ELSE 'itl' END AS target, le, sum(n) AS n
  FROM bucket
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
    AND family IN ('vllm:time_to_first_token_seconds', 'vllm:inter_token_latency_seconds', 'vllm:time_per_output_token_seconds')
  GROUP BY ALL
), scale AS (
  SELECT min(ts) AS first_ts, greatest((max(ts) - min(ts)) / $points, 1e-3) AS step FROM chosen
), sliced AS (
  SELECT target, floor((ts - first_ts) / step) AS slice, le, sum(n) AS n, max(ts) AS ts FROM chosen, scale GROUP BY target, slice, le
), summed AS (
  SELECT target, slice, le, max(ts) OVER (PARTITION BY slice) AS ts,
    coalesce(lag(le) OVER w, 0) AS low, sum(n) OVER w AS upto, sum(n) OVER (PARTITION BY target, slice) AS total
  FROM sliced WINDOW w AS (PARTITION BY target, slice ORDER BY le)
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
