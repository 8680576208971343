-- One row: what the KV events of one engine say, over all that is stored. Counts are blocks on the GPU tier.
CREATE OR REPLACE VIEW kv_summary AS
SELECT
  b.instance, b.engine,
  count(*) AS stored_blocks,
  count(DISTINCT b.hash) AS distinct_blocks,
  count(*) FILTER (b.again) AS again_blocks,           -- stored a second time on the same engine: was evicted in between
  count(*) FILTER (b.elsewhere) AS elsewhere_blocks,   -- first stored here when another engine had stored it
  max(b.block_size) AS block_size,
  any_value(g.gaps) AS gaps,                           -- messages lost
  any_value(g.salts) AS salts                          -- different cache salts seen
FROM kv_block AS b
JOIN kv_gap AS g ON g.instance IS NOT DISTINCT FROM b.instance AND g.engine = b.engine
GROUP BY b.instance, b.engine;
