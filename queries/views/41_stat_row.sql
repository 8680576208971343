-- One row: a periodic stats line, with the server that wrote it. Several hits of one record in two files count once.
CREATE OR REPLACE VIEW stat_row AS
SELECT f.instance, f.name AS file, s.* EXCLUDE (file_id)
FROM stat AS s JOIN source_file AS f USING (file_id);
