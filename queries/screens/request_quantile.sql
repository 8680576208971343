-- One row: a quantile of a histogram of the window, as the bucket that holds it, and the histogram's mean. Engines' buckets are
-- added, never their quantiles averaged. Parameters: $low, $high (epoch seconds), $engines, $names.
WITH counted AS (
  SELECT family, le, sum(n) AS n FROM bucket_sum($names, $low, $high)
  WHERE list_contains($engines, coalesce(instance, '') || '/' || engine)
  GROUP BY family, le
), summed AS (
  SELECT family, le, coalesce(lag(le) OVER w, 0) AS low, sum(n) OVER w AS upto, sum(n) OVER (PARTITION BY family) AS total
  FROM counted WINDOW w AS (PARTITION BY family ORDER BY le)
)
SELECT
  family,                      -- histogram name without _bucket
  q,                           -- 0.5, 0.95, 0.99
  arg_min(low, le) AS low_s,   -- the bucket's edges, seconds; high_s is infinite in the last
  min(le) AS high_s,
  any_value(total) AS n        -- observations
FROM summed, (VALUES (0.5::DOUBLE), (0.95::DOUBLE), (0.99::DOUBLE)) AS asked(q)
WHERE total > 0 AND upto >= q * total
GROUP BY family, q
ORDER BY family, q;
