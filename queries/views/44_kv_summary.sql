-- One row: what the KV events of one engine say. Counts are blocks on the GPU tier.
CREATE OR REPLACE VIEW kv_summary AS
WITH flat AS (
  SELECT instance, engine, ts, line, kind, block_size, salt, unnest(block_hashes) AS hash
  FROM kv_event WHERE kind = 'stored' AND coalesce(medium, 'GPU') = 'GPU'
), cleared AS (
  SELECT instance, engine, line FROM kv_event WHERE kind = 'cleared'
), phased AS (
  -- a reset empties the cache: a block stored before and after it was not evicted
  SELECT f.*, coalesce(c.n, 0) AS phase
  FROM flat AS f ASOF LEFT JOIN (
    SELECT instance, engine, line, row_number() OVER (PARTITION BY instance, engine ORDER BY line) AS n FROM cleared
  ) AS c ON c.instance IS NOT DISTINCT FROM f.instance AND c.engine = f.engine AND f.line >= c.line
), marked AS (
  SELECT *,
    row_number() OVER (PARTITION BY instance, engine, phase, hash ORDER BY line) > 1 AS again,
    row_number() OVER (PARTITION BY instance, engine, hash ORDER BY line) = 1
      AND row_number() OVER (PARTITION BY instance, hash ORDER BY line) > 1 AS elsewhere
  FROM phased
), gap AS (
  SELECT instance, engine, count(*) FILTER (seq <> before + 1) AS gaps, count(DISTINCT salt) AS salts
  FROM (SELECT instance, engine, seq, salt, lag(seq) OVER (PARTITION BY instance, source ORDER BY line) AS before
        FROM (SELECT instance, engine, source, seq, min(line) AS line, max(salt) AS salt FROM kv_event GROUP BY ALL))
  GROUP BY ALL
)
SELECT
  m.instance, m.engine,
  count(*) AS stored_blocks,
  count(DISTINCT m.hash) AS distinct_blocks,
  count(*) FILTER (m.again) AS again_blocks,           -- stored a second time on the same engine: was evicted in between
  count(*) FILTER (m.elsewhere) AS elsewhere_blocks,   -- first stored here when another engine had stored it
  max(m.block_size) AS block_size,
  any_value(g.gaps) AS gaps,                           -- messages lost
  any_value(g.salts) AS salts                          -- different cache salts seen
FROM marked AS m
JOIN gap AS g ON g.instance IS NOT DISTINCT FROM m.instance AND g.engine = m.engine
GROUP BY m.instance, m.engine;
