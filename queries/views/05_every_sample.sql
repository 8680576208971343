-- One row: one number at one instant, of open and closed days. Where a query is about a span, the store sets the variables, and
-- days that lie outside are not read (a view takes no parameters, and no condition passes through the windows of those above).
CREATE OR REPLACE VIEW every_sample AS
SELECT series_id, ts, value
FROM (SELECT series_id, ts, value FROM sample /* closed days */)
WHERE ts >= coalesce(getvariable('from_ts'), '-infinity'::DOUBLE) AND ts <= coalesce(getvariable('to_ts'), 'infinity'::DOUBLE);
