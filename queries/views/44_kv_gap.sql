-- One row: how whole the KV events of one engine are.
CREATE OR REPLACE VIEW kv_gap AS
SELECT
  instance, engine,
  count(*) FILTER (seq <> before + 1) AS gaps,         -- messages lost
  count(DISTINCT salt) AS salts                        -- different cache salts seen
FROM (
  SELECT instance, engine, seq, salt, lag(seq) OVER (PARTITION BY instance, source ORDER BY line) AS before
  FROM (SELECT instance, engine, source, seq, min(line) AS line, max(salt) AS salt FROM every_kv_event GROUP BY ALL)
)
GROUP BY ALL;
