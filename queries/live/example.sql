-- One row: a line of a live source that could not be read: the newest few of each.
SELECT file_id, line, reason
FROM rejected_line JOIN source_file AS f USING (file_id)
WHERE f.bundle = 'live' OR starts_with(f.bundle, 'prometheus ')
QUALIFY row_number() OVER (PARTITION BY file_id ORDER BY line DESC) <= 5
ORDER BY file_id, line DESC;
