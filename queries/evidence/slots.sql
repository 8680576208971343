-- One row: how many sequences ran and waited in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: stat.
SELECT
  ts,  -- end of the scrape interval
  running AS running,  -- requests running at its end
  waiting AS waiting,  -- requests waiting at its end
  kv_usage_ratio AS kv_usage_ratio  -- share of KV blocks in use
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
