-- One row: what a bucket of the latency histograms of the chosen engines counted in a slice of a span. Buckets of other edges (an
-- engine that was upgraded inside of it) are rows of their own. Rows that are kept of a long span answer it: a day as fast as an hour.
WITH named AS (
  SELECT *, list_position($families, family) AS rank FROM bucket
  WHERE list_contains($families, family) AND ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), counted AS (
  SELECT instance, rank, floor(ts / $slice) AS slice, max(ts) AS ts, low_le, le, sum(n) AS n FROM named GROUP BY ALL
), chosen AS (
  -- a renamed histogram is exposed under both names for a release: the first of $families is used
  SELECT * FROM counted QUALIFY rank = min(rank) OVER (PARTITION BY instance)
)
SELECT
  max(ts) AS ts,    -- of the last scrape in the slice
  low_le AS low_s,  -- the bucket's edges; high_s may be infinite
  le AS high_s,
  sum(n) AS total   -- observations
FROM chosen
GROUP BY slice, low_le, le
ORDER BY ts, low_s, high_s;
