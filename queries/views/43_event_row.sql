-- One row: an event, with the server and the file it comes from.
CREATE OR REPLACE VIEW event_row AS
SELECT f.instance, f.name AS file, e.line, e.ts, e.engine, e.kind, e.fields
FROM event AS e JOIN source_file AS f USING (file_id);
