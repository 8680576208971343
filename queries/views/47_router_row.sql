-- One row: what a router said of one engine, or of all, in one scrape interval: increases of its counters, gauges at the end.
-- After a restart counting starts at 0; the first scrape is the baseline and gives no row. NULL = not exposed.
CREATE OR REPLACE VIEW router_row AS
WITH point AS (
  SELECT s.instance, s.router, s.target, s.quantity, s.kind, m.ts, m.series_id, max(m.value) AS value
  FROM every_sample AS m JOIN router_series AS s USING (series_id)
  WHERE s.quantity IS NOT NULL
  GROUP BY ALL
), stepped AS (
  SELECT *, lag(value) OVER (PARTITION BY series_id ORDER BY ts) AS before, min(ts) OVER (PARTITION BY instance) AS first_ts FROM point
), grown AS (
  SELECT instance, router, target, quantity, ts,
    sum(CASE WHEN kind = 'gauge' THEN value WHEN before IS NULL OR value < before THEN value ELSE value - before END) AS value
  FROM stepped WHERE ts > first_ts
  GROUP BY ALL
)
SELECT
  instance,                            -- of the router
  router,                              -- production-stack | llm-d | Dynamo
  target,                              -- the engine, as the router names it; '' = all
  ts,                                  -- end of the interval
  max(value) FILTER (quantity = 'wait_s') AS wait_s,  -- seconds that requests waited in the router for an engine
  max(value) FILTER (quantity = 'wait_n') AS wait_n,
  max(value) FILTER (quantity = 'queued') AS queued,  -- requests in the router's queue
  max(value) FILTER (quantity = 'hit_ratio_sum') AS hit_ratio_sum,  -- of requests' matched shares of their prompt
  max(value) FILTER (quantity = 'hit_ratio_n') AS hit_ratio_n,
  max(value) FILTER (quantity = 'ttft_s') AS ttft_s,  -- as the router sees it
  max(value) FILTER (quantity = 'ttft_n') AS ttft_n,
  max(value) FILTER (quantity = 'e2e_s') AS e2e_s,
  max(value) FILTER (quantity = 'e2e_n') AS e2e_n,
  max(value) FILTER (quantity = 'hit_tokens') AS hit_tokens,  -- of one engine (blocks in vLLM 0.8.5)
  max(value) FILTER (quantity = 'query_tokens') AS query_tokens,
  max(value) FILTER (quantity = 'in_flight') AS in_flight
FROM grown
GROUP BY instance, router, target, ts;
