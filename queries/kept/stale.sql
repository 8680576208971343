-- One row: a part of the minutes $first to $last that is not kept as it would be computed now, up to $high. Its seal is made of
-- everything that its rows depend on: the scrapes in it and up to five minutes before, the scrape that its first interval begins with,
-- the names that give way to newer ones, and the engines. Samples are only ever written together with their scrapes.
WITH settled AS (
  SELECT s.instance, sum(hash(s.series_id)) FILTER (q.series_id IS NULL) AS outranked, sum(DISTINCT hash(q.engine)) AS engines
  FROM (
    SELECT s.instance, s.series_id FROM series AS s
    JOIN (SELECT DISTINCT raw FROM quantity) AS q ON q.raw = regexp_replace(s.name, '^(ray_)?vllm_', 'vllm:')
  ) AS s LEFT JOIN quantity_series AS q USING (series_id)
  GROUP BY s.instance
), kept AS (
  SELECT * FROM kept_rows.part WHERE part >= $first AND part <= $last
), scraped AS (
  SELECT instance, ceil(ts / 60)::BIGINT - 1 AS part, ts, hash(ts, file_id, timed) AS own
  FROM scrape
  WHERE ok AND timed AND instance IS NOT NULL AND ts > 60 * ($first - 5) AND ts <= 60 * ($last + 1)
), grouped AS (
  SELECT s.instance, s.part, sum(s.own) AS own, count(*) AS scrapes, max(s.ts) AS last_ts,
    -- while a minute lasts, more of it comes: what is kept holds as far as it goes
    sum(s.own) FILTER (s.ts > k.upto_ts) AS since, coalesce(bool_or(s.ts > k.upto_ts AND s.ts <= $high), false) AS more
  FROM scraped AS s LEFT JOIN kept AS k USING (instance, part)
  GROUP BY ALL
), before AS (
  SELECT instance, max(ts) AS ts FROM scrape WHERE ok AND timed AND ts <= 60 * ($first - 5) GROUP BY instance
), sealed AS (
  SELECT g.instance, g.part, g.scrapes, g.last_ts, g.more,
    sum(g.own) OVER (PARTITION BY g.instance ORDER BY g.part RANGE BETWEEN 5 PRECEDING AND CURRENT ROW) AS all_own, g.since,
    hash(coalesce(lag(g.last_ts) OVER (PARTITION BY g.instance ORDER BY g.part), b.ts), s.outranked, s.engines) AS others
  FROM grouped AS g LEFT JOIN before AS b USING (instance) LEFT JOIN settled AS s USING (instance)
), now AS (
  SELECT instance, part, scrapes, last_ts, more,
    hash(all_own, others) AS seal,
    hash(all_own - coalesce(since, 0), others) AS seal_then  -- of the scrapes up to where it is kept
  FROM sealed WHERE part >= $first
)
SELECT
  coalesce(n.instance, k.instance) AS instance,
  coalesce(n.part, k.part) AS part,
  n.seal,                               -- NULL: nothing was scraped then; what is kept goes
  k.seal IS NOT NULL AS kept,           -- as it was
  coalesce(n.scrapes, 0) AS scrapes,
  n.last_ts,
  CASE WHEN n.seal_then = k.seal THEN k.upto_ts END AS upto_ts  -- what is kept holds up to here, and more came; NULL: none of it does
FROM now AS n FULL JOIN kept AS k ON k.instance = n.instance AND k.part = n.part
WHERE n.seal_then IS DISTINCT FROM k.seal OR n.more
ORDER BY part, instance;
