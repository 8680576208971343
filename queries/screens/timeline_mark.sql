-- One row: something that happened in the window on a server of the chosen engines: restarts seen by scrapes, and events of
-- the log that explain a change in the curves.
WITH happened AS (
  SELECT instance, ts, 'restart' AS kind, NULL AS fields, NULL AS file, NULL::BIGINT AS line FROM epoch WHERE restarted AND timed
  UNION ALL
  SELECT instance, ts, kind, fields, file, line FROM event_row
  WHERE ts IS NOT NULL AND kind IN ('start', 'listening', 'jit', 'rearrange', 'failed', 'death', 'prefix_reset', 'preempted_v0', 'aborted')
)
SELECT
  ts,
  kind,      -- restart, or the kind of the event (queries/schema, table event)
  instance,
  fields,    -- JSON; NULL for a restart seen by scrapes
  file,      -- the log and its line; NULL for a restart seen by scrapes
  line
FROM happened
WHERE ts >= $low AND ts <= $high AND list_contains($instances, coalesce(instance, ''))
ORDER BY ts, kind
LIMIT 400;
