-- One row: a cell of the heat map where no request was recorded: observations of a latency histogram in a slice of time and a
-- bucket. Parameters: $low, $high (epoch seconds), $engines, $family, $slices.
WITH chosen AS (
  SELECT ts, le, sum(n) AS n FROM bucket
  WHERE ts > $low AND ts <= $high AND family = $family AND list_contains($engines, coalesce(instance, '') || '/' || engine)
  GROUP BY ts, le
), scale AS (
  SELECT min(ts) AS first_ts, greatest((max(ts) - min(ts)) / $slices, 1e-3) AS step FROM chosen
), banded AS (
  SELECT le, row_number() OVER (ORDER BY le) - 1 AS band, coalesce(lag(le) OVER (ORDER BY le), 0) AS low_s
  FROM (
    SELECT DISTINCT le FROM bucket_sum([$family], $low, $high) WHERE list_contains($engines, coalesce(instance, '') || '/' || engine)
  )
)
SELECT
  first_ts + step * (least(floor((ts - first_ts) / step), $slices - 1) + 0.5) AS ts,
  band, any_value(low_s) AS low_s, any_value(le) AS high_s,   -- the bucket's edges; high_s is infinite in the last
  sum(n) AS n,
  any_value(step) AS step_s
FROM chosen JOIN banded USING (le), scale
GROUP BY ALL
HAVING sum(n) > 0
ORDER BY ts, band;
