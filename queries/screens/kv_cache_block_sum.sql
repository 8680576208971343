-- One row: a histogram of --kv-cache-metrics and the seconds that its observations add up to, over the chosen engines and the window.
WITH summed AS (
  SELECT sum(block_lifetime_s) AS lifetime_s, sum(block_idle_s) AS idle_s, sum(block_reuse_gap_s) AS gap_s
  FROM interval_row
  WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
)
SELECT family, sum_s
FROM (
  SELECT 'vllm:kv_block_lifetime_seconds' AS family, lifetime_s AS sum_s FROM summed
  UNION ALL SELECT 'vllm:kv_block_idle_before_evict_seconds', idle_s FROM summed
  UNION ALL SELECT 'vllm:kv_block_reuse_gap_seconds', gap_s FROM summed
)
WHERE sum_s IS NOT NULL
ORDER BY family;
