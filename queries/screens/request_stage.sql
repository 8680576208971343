-- One row: a stage (or TTFT, TPOT, E2E) over the requests that ended in the window: mean and quantiles in seconds, from records.
-- Parameters: $low, $high (epoch seconds), $instances, $target.
WITH chosen AS (
  SELECT
    CASE WHEN ttft_s - queue_s - prefill_s < 0 THEN 0 ELSE ttft_s - queue_s - prefill_s END AS frontend, queue_s AS queue, prefill_s AS prefill, decode_s AS decode,
    CASE WHEN e2e_s - ttft_s - decode_s < 0 THEN 0 ELSE e2e_s - ttft_s - decode_s END AS output,
    coalesce(ttft_s, client_ttft_s) AS ttft,
    coalesce(decode_s, client_e2e_s - client_ttft_s) / nullif(output_tokens - 1, 0) AS tpot,
    coalesce(e2e_s, client_e2e_s) AS e2e
  FROM request_row
  WHERE end_ts > $low AND end_ts <= $high AND list_contains($instances, coalesce(instance, ''))
), ranked AS (
  SELECT *, CASE $target WHEN 'ttft' THEN ttft WHEN 'tpot' THEN tpot ELSE e2e END AS value
  FROM chosen
), placed AS (
  SELECT *, value IS NOT NULL AND percent_rank() OVER (PARTITION BY value IS NULL ORDER BY value) >= 0.95 AS slow FROM ranked
), long AS (
  UNPIVOT (SELECT frontend, queue, prefill, decode, output, ttft, tpot, e2e, slow FROM placed)
  ON frontend, queue, prefill, decode, output, ttft, tpot, e2e INTO NAME name VALUE seconds
)
SELECT
  name,                                              -- frontend queue prefill decode output ttft tpot e2e
  count(*) AS n,
  avg(seconds) AS mean_s,
  quantile_cont(seconds, 0.5) AS p50_s,
  quantile_cont(seconds, 0.95) AS p95_s,
  quantile_cont(seconds, 0.99) AS p99_s,
  avg(seconds) FILTER (slow) AS slow_s               -- mean over the slowest 5 % by the target
FROM long
GROUP BY name
ORDER BY list_position(['frontend', 'queue', 'prefill', 'decode', 'output', 'ttft', 'tpot', 'e2e'], name);
