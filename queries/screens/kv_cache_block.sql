-- One row: a bucket of what --kv-cache-metrics samples of KV blocks, over the chosen engines and the window.
SELECT
  family,        -- vllm:kv_block_lifetime_seconds, _idle_before_evict_seconds, _reuse_gap_seconds
  le,            -- upper edge, seconds; infinite in the last
  sum(n) AS n    -- observations (a sample: 1 % of allocations unless --kv-cache-metrics-sample says otherwise)
FROM bucket_sum(
  ['vllm:kv_block_lifetime_seconds', 'vllm:kv_block_idle_before_evict_seconds', 'vllm:kv_block_reuse_gap_seconds'], $low, $high
)
WHERE list_contains($engines, coalesce(instance, '') || '/' || engine)
GROUP BY family, le
ORDER BY family, le;
