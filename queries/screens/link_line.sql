-- One row: a line of a log that bears on a link: stats lines, iteration lines and events of the kinds asked for. Of each kind the
-- $most that tell most (stats lines with most waiting, steps with most prompt tokens, events in their order).
-- Parameters: $low, $high (epoch seconds), $engines, $kinds.
WITH stats AS (
  SELECT ts, instance, engine, 'stat' AS kind, file, line, coalesce(waiting, 0) AS weight,
    to_json({running: running, waiting: waiting, deferred: deferred, kv_usage_ratio: kv_usage_ratio, prefix_hit_ratio: prefix_hit_ratio,
      prompt_tokens_per_s: prompt_tokens_per_s, generation_tokens_per_s: generation_tokens_per_s})::VARCHAR AS fields
  FROM stat_row
  WHERE list_contains($kinds, 'stat') AND (ts IS NULL OR (ts >= $low AND ts <= $high))
    AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), steps AS (
  SELECT ts, instance, engine, 'step' AS kind, file, line, coalesce(context_tokens, 0) AS weight,
    to_json({iteration: iteration, context_requests: context_requests, context_tokens: context_tokens,
      generation_requests: generation_requests, generation_tokens: generation_tokens, elapsed_s: elapsed_s,
      kv_usage_ratio: kv_usage_ratio})::VARCHAR AS fields
  FROM step_row
  WHERE list_contains($kinds, 'step') AND (ts IS NULL OR (ts >= $low AND ts <= $high))
    AND list_contains($engines, coalesce(instance, '') || '/' || engine)
), events AS (
  SELECT ts, instance, engine, kind, file, line, -line AS weight, fields
  FROM event_row
  WHERE list_contains($kinds, kind) AND (ts IS NULL OR (ts >= $low AND ts <= $high))
    AND list_contains(list_transform($engines, lambda one: regexp_replace(one, '/[^/]*$', '')), coalesce(instance, ''))
), ranked AS (
  SELECT *, row_number() OVER (PARTITION BY kind ORDER BY weight DESC, file, line) AS place, count(*) OVER (PARTITION BY kind) AS found
  FROM (SELECT * FROM stats UNION ALL BY NAME SELECT * FROM steps UNION ALL BY NAME SELECT * FROM events)
)
SELECT
  ts,            -- NULL: the line carries no time
  instance, engine,
  kind,          -- stat, step, or the kind of the event (queries/schema, table event)
  fields,        -- JSON: what was read of it; the line itself is not kept
  file, line,    -- where it stands
  found          -- how many of this kind there are in the window
FROM ranked
WHERE place <= $most
ORDER BY kind IN ('stat', 'step'), kind, ts, file, line;
