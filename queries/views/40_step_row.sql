-- One row: an engine step as its iteration line says it, with the server that wrote it. A line that stands in two files
-- (an overlapping copy) counts once.
CREATE OR REPLACE VIEW step_row AS
SELECT
  f.instance, s.engine, s.ts, s.fine, s.line, f.name AS file,
  s.iteration, s.context_requests, s.context_tokens, s.generation_requests, s.generation_tokens,
  s.elapsed_s, s.kv_usage_ratio, s.dummy
FROM every_step AS s JOIN source_file AS f USING (file_id)
QUALIFY row_number() OVER (PARTITION BY f.instance, s.engine, s.iteration, s.ts, s.context_tokens, s.generation_tokens, s.elapsed_s ORDER BY s.file_id, s.line) = 1;
