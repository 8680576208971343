-- One row: a KV block that was stored on the GPU tier, as the KV events say it.
CREATE OR REPLACE VIEW kv_block AS
WITH flat AS (
  SELECT instance, engine, ts, line, block_size, unnest(block_hashes) AS hash
  FROM every_kv_event WHERE kind = 'stored' AND coalesce(medium, 'GPU') = 'GPU'
), cleared AS (
  SELECT instance, engine, line FROM every_kv_event WHERE kind = 'cleared'
), phased AS (
  -- a reset empties the cache: a block stored before and after it was not evicted
  SELECT f.*, coalesce(c.n, 0) AS phase
  FROM flat AS f ASOF LEFT JOIN (
    SELECT instance, engine, line, row_number() OVER (PARTITION BY instance, engine ORDER BY line) AS n FROM cleared
  ) AS c ON c.instance IS NOT DISTINCT FROM f.instance AND c.engine = f.engine AND f.line >= c.line
)
SELECT
  instance, engine,
  ts,                                                  -- when the event was sent
  hash, block_size,
  -- stored a second time on the same engine: was evicted in between
  row_number() OVER (PARTITION BY instance, engine, phase, hash ORDER BY line) > 1 AS again,
  -- first stored here when another engine had stored it
  row_number() OVER (PARTITION BY instance, engine, hash ORDER BY line) = 1
    AND row_number() OVER (PARTITION BY instance, hash ORDER BY line) > 1 AS elsewhere
FROM phased;
