-- One row: a line that was not understood, of the files with most of them; never its text.
SELECT f.bundle, f.name, f.format, r.line, r.reason
FROM rejected_line AS r JOIN source_file AS f USING (file_id)
QUALIFY row_number() OVER (PARTITION BY r.file_id ORDER BY r.line) <= 5
ORDER BY f.rejected DESC, f.file_id, r.line
LIMIT $most;
