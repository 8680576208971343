-- One row: an engine step's line, of open and closed days.
CREATE OR REPLACE VIEW every_step AS
SELECT * FROM step /* closed days */;
