-- One row: a part of the minutes $first to $last that is not kept as it would be computed now. Its seal is made of everything that
-- its rows depend on: the scrapes in it and up to five minutes before, the scrape that its first interval begins with, the names
-- that give way to newer ones, and the engines. Samples are only ever written together with their scrapes.
WITH settled AS (
  SELECT s.instance, sum(hash(s.series_id)) FILTER (q.series_id IS NULL) AS outranked, sum(DISTINCT hash(q.engine)) AS engines
  FROM (
    SELECT s.instance, s.series_id FROM series AS s
    JOIN (SELECT DISTINCT raw FROM quantity) AS q ON q.raw = regexp_replace(s.name, '^(ray_)?vllm_', 'vllm:')
  ) AS s LEFT JOIN quantity_series AS q USING (series_id)
  GROUP BY s.instance
), grouped AS (
  SELECT instance, ceil(ts / 60)::BIGINT - 1 AS part, sum(hash(ts, file_id, timed)) AS own, count(*) AS scrapes, max(ts) AS last_ts
  FROM scrape
  WHERE ok AND timed AND instance IS NOT NULL AND ts > 60 * ($first - 5) AND ts <= 60 * ($last + 1)
  GROUP BY ALL
), before AS (
  SELECT instance, max(ts) AS ts FROM scrape WHERE ok AND timed AND ts <= 60 * ($first - 5) GROUP BY instance
), sealed AS (
  SELECT g.instance, g.part, g.scrapes,
    hash(
      sum(g.own) OVER (PARTITION BY g.instance ORDER BY g.part RANGE BETWEEN 5 PRECEDING AND CURRENT ROW),
      coalesce(lag(g.last_ts) OVER (PARTITION BY g.instance ORDER BY g.part), b.ts),
      s.outranked, s.engines
    ) AS seal
  FROM grouped AS g LEFT JOIN before AS b USING (instance) LEFT JOIN settled AS s USING (instance)
), now AS (
  SELECT * FROM sealed WHERE part >= $first
), kept AS (
  SELECT * FROM kept_rows.part WHERE part >= $first AND part <= $last
)
SELECT
  coalesce(n.instance, k.instance) AS instance,
  coalesce(n.part, k.part) AS part,
  n.seal,                               -- NULL: nothing was scraped then; what is kept goes
  k.seal IS NOT NULL AS kept,           -- as it was
  coalesce(n.scrapes, 0) AS scrapes
FROM now AS n FULL JOIN kept AS k ON k.instance = n.instance AND k.part = n.part
WHERE n.seal IS DISTINCT FROM k.seal
ORDER BY part, instance;
