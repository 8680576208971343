-- One row: a record of one request (the server's span, a client's line), with the place where it stands.
-- Parameters: $key, $instance, $many.
SELECT
  r.source,                             -- span | client
  f.name AS file, r.line,
  r.arrival_ts, r.end_ts, r.status, r.finish_reason,
  r.chunk_s                             -- client: seconds from sending to each streamed chunk; NULL: not recorded
FROM request AS r JOIN source_file AS f USING (file_id)
WHERE coalesce(r.request_id, r.trace_id, coalesce(r.instance, '') || '@' || r.arrival_ts) || CASE WHEN $many THEN '@' || $instance ELSE '' END = $key
  AND ($instance = '' OR coalesce(r.instance, $instance) = $instance)
ORDER BY r.source DESC, f.name, r.line
LIMIT 20;
