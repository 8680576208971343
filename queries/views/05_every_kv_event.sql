-- One row: a KV cache event, of open and closed days.
CREATE OR REPLACE VIEW every_kv_event AS
SELECT * FROM kv_event /* closed days */;
