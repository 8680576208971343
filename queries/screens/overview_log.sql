-- One row: levels of the window over the chosen engines, from the stats lines of the log; NULL where there are none.
SELECT
  max(ts) - min(ts) AS span_s,
  count(*) AS stats,                                                  -- stats lines
  sum(generation_tokens_per_s) / nullif(count(DISTINCT coalesce(ts::VARCHAR, file || line)), 0) AS generation_tokens_per_s,
  sum(prompt_tokens_per_s) / nullif(count(DISTINCT coalesce(ts::VARCHAR, file || line)), 0) AS prompt_tokens_per_s,
  max(kv_usage_ratio) AS kv_peak_ratio,
  avg(kv_usage_ratio) AS kv_mean_ratio,
  max(running) AS running_peak,
  max(waiting) AS waiting_peak
FROM stat_row
WHERE (ts IS NULL OR (ts >= $low AND ts <= $high)) AND list_contains($engines, coalesce(instance, '') || '/' || engine);
