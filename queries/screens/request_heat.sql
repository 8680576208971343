-- One row: a cell of the heat map: how many requests that began in a slice of time had a latency in a band. Bands are log-even.
-- Parameters: $low, $high (epoch seconds), $instances, $target, $slices, $bands.
WITH chosen AS (
  SELECT arrival_ts AS ts, CASE $target WHEN 'ttft' THEN coalesce(ttft_s, client_ttft_s) WHEN 'e2e' THEN coalesce(e2e_s, client_e2e_s)
    ELSE coalesce(decode_s, client_e2e_s - client_ttft_s) / nullif(output_tokens - 1, 0) END AS value
  FROM request_row
  WHERE end_ts > $low AND end_ts <= $high AND list_contains($instances, coalesce(instance, '')) AND arrival_ts IS NOT NULL
), kept AS (
  SELECT ts, greatest(value, 1e-5) AS value FROM chosen WHERE value IS NOT NULL
), scale AS (
  SELECT min(ts) AS first_ts, greatest((max(ts) - min(ts)) / $slices, 1e-3) AS step,
    log10(min(value)) AS least, greatest((log10(max(value)) - log10(min(value))) / $bands, 1e-6) AS height
  FROM kept
)
SELECT
  first_ts + step * (least(floor((ts - first_ts) / step), $slices - 1) + 0.5) AS ts,       -- middle of the slice
  least(floor((log10(value) - least) / height), $bands - 1) AS band,                        -- 0 = fastest
  any_value(10 ** (least + height * least(floor((log10(value) - least) / height), $bands - 1))) AS low_s,
  any_value(10 ** (least + height * (least(floor((log10(value) - least) / height), $bands - 1) + 1))) AS high_s,
  count(*) AS n,
  any_value(step) AS step_s
FROM kept, scale
GROUP BY ALL
ORDER BY ts, band;
