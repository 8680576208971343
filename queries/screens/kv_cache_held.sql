-- One row: an engine in a slice of the page's time axis ($edges are the ends): how many cached blocks it held at its last KV event
-- in the slice. Counted from the start of the server or a reset on; before that, blocks may lie there that no event told of.
WITH line AS (
  SELECT coalesce(instance, '') || '/' || engine AS name, line, min(ts) AS ts, min(seq) AS seq,
    bool_or(kind = 'cleared') AS cleared,
    sum(CASE kind WHEN 'stored' THEN len(block_hashes) WHEN 'removed' THEN -len(block_hashes) ELSE 0 END) AS change
  FROM every_kv_event
  WHERE ts <= $high AND coalesce(medium, 'GPU') = 'GPU' AND list_contains($engines, coalesce(instance, '') || '/' || engine)
  GROUP BY ALL
), phased AS (
  SELECT *, sum(cleared::INT) OVER (PARTITION BY name ORDER BY line ROWS UNBOUNDED PRECEDING) AS phase,
    min(seq) OVER (PARTITION BY name) = 0 AS whole
  FROM line
), summed AS (
  SELECT name, line, ts, whole OR phase > 0 AS known,
    sum(change) OVER (PARTITION BY name, phase ORDER BY line ROWS UNBOUNDED PRECEDING) AS held
  FROM phased
)
SELECT
  s.name,                          -- "host:port/engine"
  e.edge_ts AS ts,                 -- the end of the slice
  arg_max(s.held, s.line) AS held_blocks
FROM (SELECT * FROM summed WHERE known) AS s ASOF JOIN (SELECT unnest($edges::DOUBLE[]) AS edge_ts) AS e ON s.ts <= e.edge_ts
GROUP BY ALL
ORDER BY s.name, e.edge_ts;
