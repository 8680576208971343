-- One row: a bucket of what --kv-cache-metrics samples of KV blocks, over the chosen engines and the window.
SELECT
  family,        -- vllm:kv_block_lifetime_seconds, _idle_before_evict_seconds, _reuse_gap_seconds
  le,            -- upper edge, seconds; infinite in the last
  sum(n) AS n    -- observations (a sample: 1 % of allocations unless --kv-cache-metrics-sample says otherwise)
FROM bucket
WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
  AND family IN ('vllm:kv_block_lifetime_seconds', 'vllm:kv_block_idle_before_evict_seconds', 'vllm:kv_block_reuse_gap_seconds')
GROUP BY family, le
ORDER BY family, le;
