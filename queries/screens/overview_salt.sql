-- One row: what KV events say about who may share prefixes, over the chosen engines; no row where there are none.
SELECT
  max(salts) AS salts,                     -- different cache salts; 0: every request shares with every other
  sum(stored_blocks) AS stored_blocks,
  sum(elsewhere_blocks) AS elsewhere_blocks  -- stored here although another engine had stored them
FROM kv_summary
WHERE list_contains($engines, coalesce(instance, '') || '/' || engine)
HAVING count(*) > 0;
