-- One row: a distance at which blocks came back after they had been reclaimed, on one engine: how many other blocks were
-- reclaimed in between. So many more blocks of capacity would have kept them (blocks are reclaimed in the order of their last use).
WITH removed AS MATERIALIZED (
  SELECT name, line, hash, row_number() OVER (PARTITION BY name ORDER BY line, place, hash) AS nth
  FROM (
    SELECT coalesce(instance, '') || '/' || engine AS name, line, unnest(block_hashes) AS hash, generate_subscripts(block_hashes, 1) AS place
    FROM every_kv_event
    WHERE kind = 'removed' AND coalesce(medium, 'GPU') = 'GPU' AND list_contains($engines, coalesce(instance, '') || '/' || engine)
  )
), cleared AS (
  SELECT coalesce(instance, '') || '/' || engine AS name, line FROM every_kv_event WHERE kind = 'cleared'
), stored AS (
  SELECT coalesce(instance, '') || '/' || engine AS name, line, unnest(block_hashes) AS hash
  FROM every_kv_event
  WHERE kind = 'stored' AND coalesce(medium, 'GPU') = 'GPU' AND ts > $low AND ts <= $high
    AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), so_far AS (
  SELECT name, line, max(nth) AS nth FROM removed GROUP BY ALL
), back AS (
  SELECT s.name, n.nth - r.nth + 1 AS distance, r.line AS removed_line, s.line
  FROM stored AS s
  ASOF JOIN removed AS r ON r.name = s.name AND r.hash = s.hash AND r.line < s.line
  ASOF JOIN so_far AS n ON n.name = s.name AND n.line <= s.line
)
SELECT
  name,                    -- "host:port/engine"
  distance,                -- further blocks that would have kept them
  count(*) AS blocks       -- that came back at this distance
FROM back AS b
WHERE NOT EXISTS (SELECT 1 FROM cleared AS c WHERE c.name = b.name AND c.line > b.removed_line AND c.line <= b.line)
GROUP BY ALL
ORDER BY name, distance;
