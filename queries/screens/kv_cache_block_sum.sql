-- One row: a histogram of --kv-cache-metrics and the seconds that its observations add up to, over the chosen engines and the window.
SELECT
  CASE quantity WHEN 'block_lifetime_s' THEN 'vllm:kv_block_lifetime_seconds' WHEN 'block_idle_s' THEN 'vllm:kv_block_idle_before_evict_seconds'
    ELSE 'vllm:kv_block_reuse_gap_seconds' END AS family,
  sum(increase) AS sum_s
FROM delta
WHERE quantity IN ('block_lifetime_s', 'block_idle_s', 'block_reuse_gap_s') AND ts > $low AND ts <= $high
  AND list_contains($engines, coalesce(instance, '') || '/' || engine)
GROUP BY quantity
ORDER BY quantity;
