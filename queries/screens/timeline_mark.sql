-- One row: something that happened in the window on a server of the chosen engines: restarts and standstills seen by scrapes,
-- events of the log that explain a change in the curves, alerts.
WITH stood AS (
  SELECT instance, ts - dt_s AS ts, coalesce(step_n = 0 AND running > 0 AND running_before > 0 AND NOT restarted, false) AS still,
    lag(coalesce(step_n = 0 AND running > 0 AND running_before > 0 AND NOT restarted, false)) OVER (PARTITION BY instance, engine ORDER BY ts) AS before
  FROM interval_row WHERE timed AND ts > $low AND ts <= $high
), happened AS (
  SELECT DISTINCT instance, ts, 'restart' AS kind, NULL AS fields, NULL AS file, NULL::BIGINT AS line
  FROM interval_row WHERE restarted AND timed AND ts > $low AND ts <= $high
  UNION ALL
  SELECT instance, ts, 'standstill', NULL, NULL, NULL FROM stood WHERE still AND NOT coalesce(before, false)
  UNION ALL
  SELECT instance, ts, kind, fields, file, line FROM event_row
  WHERE ts IS NOT NULL AND kind IN ('start', 'listening', 'jit', 'rearrange', 'failed', 'death', 'prefix_reset', 'preempted_v0', 'aborted')
), alerted AS (
  SELECT fired_ts AS ts, 'fired' AS kind, slo, severity FROM alert
  UNION ALL
  SELECT resolved_ts, 'resolved', slo, severity FROM alert WHERE resolved_ts IS NOT NULL
)
SELECT
  ts,
  kind,      -- restart, standstill, fired, resolved, or the kind of the event (queries/schema, table event)
  instance,
  fields,    -- JSON; NULL for what scrapes show
  file,      -- the log and its line; NULL for what scrapes show
  line
FROM happened
WHERE ts >= $low AND ts <= $high AND list_contains($instances, coalesce(instance, ''))
UNION ALL
SELECT ts, kind, NULL, to_json({objective: slo, severity: severity})::VARCHAR, NULL, NULL FROM alerted
WHERE ts >= $low AND ts <= $high
ORDER BY ts, kind
LIMIT 400;
