-- One row: a slice of the page's time axis, the chosen engines together, from KV events of the GPU tier. $edges are the ends of
-- the slices, in order; $start is where the first begins.
WITH edge AS (
  SELECT unnest($edges::DOUBLE[]) AS edge_ts
), counted AS (
  SELECT e.edge_ts, sum(v.n) FILTER (v.kind = 'removed') AS removed, sum(v.n) FILTER (v.kind = 'stored') AS stored
  FROM (
    SELECT ts, kind, len(block_hashes) AS n FROM every_kv_event
    WHERE ts > $start AND ts <= $high AND coalesce(medium, 'GPU') = 'GPU' AND list_contains($engines, coalesce(instance, '') || '/' || engine)
  ) AS v ASOF JOIN edge AS e ON v.ts <= e.edge_ts
  GROUP BY ALL
), again AS (
  SELECT e.edge_ts, count(*) FILTER (b.again) AS again, count(*) FILTER (b.elsewhere) AS elsewhere
  FROM (
    SELECT ts, again, elsewhere FROM kv_block
    WHERE ts > $start AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine)
  ) AS b ASOF JOIN edge AS e ON b.ts <= e.edge_ts
  GROUP BY ALL
)
SELECT
  edge_ts AS ts,                                      -- the end of the slice
  coalesce(stored, 0) / width AS stored_per_s,        -- blocks that became cached
  coalesce(removed, 0) / width AS removed_per_s,      -- cached blocks that were reclaimed
  coalesce(again, 0) / width AS again_per_s,          -- stored a second time on the same engine
  coalesce(elsewhere, 0) / width AS elsewhere_per_s   -- stored here first although another engine had stored them
FROM (SELECT edge_ts, greatest(edge_ts - lag(edge_ts, 1, $start) OVER (ORDER BY edge_ts), 1e-3) AS width FROM edge)
LEFT JOIN counted USING (edge_ts) LEFT JOIN again USING (edge_ts)
ORDER BY ts;
