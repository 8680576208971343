-- One row: KV blocks in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: kv_cache, preempted_v0, stat.
SELECT
  ts,  -- end of the scrape interval
  kv_usage_ratio AS kv_usage_ratio,  -- share of KV blocks in use at its end (cached-only blocks are not in it)
  preemptions AS preemptions,  -- running requests that lost their blocks
  waiting AS waiting,  -- requests waiting at its end
  running AS running  -- requests running at its end
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
