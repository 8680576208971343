-- One row: a quantile of a latency histogram in the window, as the bucket that holds it. Engines' buckets are added, never
-- their quantiles averaged.
WITH counted AS (
  SELECT family, le, sum(n) AS n
  FROM bucket_sum(
    ['vllm:time_to_first_token_seconds', 'vllm:inter_token_latency_seconds', 'vllm:time_per_output_token_seconds', 'vllm:e2e_request_latency_seconds'],
    $low, $high
  )
  WHERE list_contains($engines, coalesce(instance, '') || '/' || engine)
  GROUP BY family, le
), summed AS (
  SELECT family, le,
    coalesce(lag(le) OVER w, 0) AS low,
    sum(n) OVER w AS upto,
    sum(n) OVER (PARTITION BY family) AS total
  FROM counted WINDOW w AS (PARTITION BY family ORDER BY le)
)
SELECT
  CASE family WHEN 'vllm:time_to_first_token_seconds' THEN 'ttft' WHEN 'vllm:e2e_request_latency_seconds' THEN 'e2e' ELSE 'itl' END AS target,
  q,                           -- 0.5, 0.95, ...
  arg_min(low, le) AS low_s,   -- the bucket's edges, seconds; high_s is infinite in the last
  min(le) AS high_s,
  any_value(total) AS n        -- observations
FROM summed, (VALUES (0.5::DOUBLE), (0.95::DOUBLE), (0.99::DOUBLE)) AS asked(q)
WHERE total > 0 AND upto >= q * total
GROUP BY family, q
ORDER BY target, q;
