-- One row: a run of KV blocks that were first stored together and stored equally often on equally many engines: a prefix that
-- several requests share. The ones that were computed again most come first.
WITH stored AS (
  SELECT coalesce(instance, '') || '/' || engine AS name, line, ts, block_size,
    unnest(block_hashes) AS hash, generate_subscripts(block_hashes, 1) AS place
  FROM every_kv_event
  WHERE kind = 'stored' AND coalesce(medium, 'GPU') = 'GPU' AND ts > $low AND ts <= $high
    AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), block AS (
  SELECT hash, count(*) AS times, count(DISTINCT name) AS engines, any_value(block_size) AS block_size,
    min(ts) AS first_ts, max(ts) AS last_ts, arg_min(struct_pack(name, line), ts) AS born, arg_min(place, ts) AS place
  FROM stored GROUP BY hash HAVING count(*) > 1
)
SELECT
  arg_min(hash, place) AS hash,            -- of its first block
  count(*) AS blocks,                   -- long
  times,                                -- each block was stored
  engines,                              -- that stored it
  any_value(block_size) AS block_size,  -- tokens in a block
  min(first_ts) AS first_ts,            -- of the window
  max(last_ts) AS last_ts
FROM block
GROUP BY born, times, engines
ORDER BY (times - 1) * count(*) DESC, hash
LIMIT $most;
