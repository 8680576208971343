-- One row: a periodic stats line, with the server that wrote it. Several hits of one record in two files count once.
CREATE OR REPLACE VIEW stat_row AS
SELECT f.instance, f.name AS file, s.* EXCLUDE (file_id)
FROM stat AS s JOIN source_file AS f USING (file_id)
QUALIFY row_number() OVER (PARTITION BY f.instance, s.engine, s.ts, s.prompt_tokens_per_s, s.generation_tokens_per_s, s.running, s.waiting ORDER BY s.file_id, s.line) = 1;
