-- One row: the KV events of one engine: how many there are, and how whole.
SELECT
  coalesce(instance, '') || '/' || engine AS name,
  stored_blocks, distinct_blocks, again_blocks, elsewhere_blocks,
  block_size,   -- tokens in a block
  gaps,         -- messages lost
  salts         -- different cache salts seen
FROM kv_summary
WHERE list_contains($engines, coalesce(instance, '') || '/' || engine)
ORDER BY name;
