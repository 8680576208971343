-- One row: what a bucket of the latency histograms of the chosen engines counted in a span. Buckets of other edges (an engine that
-- was upgraded inside of it) are rows of their own. Rows that are kept of a long span answer it.
WITH named AS (
  SELECT *, list_position($families, family) AS rank FROM bucket
  WHERE list_contains($families, family) AND ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), counted AS (
  SELECT instance, rank, low_le, le, sum(n) AS n FROM named GROUP BY ALL
)
-- a renamed histogram is exposed under both names for a release: the first of $families is used
SELECT low_le AS low_s, le AS high_s, n FROM counted QUALIFY rank = min(rank) OVER (PARTITION BY instance) ORDER BY instance, low_s, high_s;
