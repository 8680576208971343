-- One row: prefix hits in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: prefix_reset, stat.
SELECT
  ts,  -- end of the scrape interval
  (coalesce(local_hit_tokens, 0) + coalesce(external_hit_tokens, 0)) / nullif(prompt_tokens, 0) AS hit_ratio,  -- share of prompt tokens not computed
  prompt_tokens / nullif(dt_s, 0) AS prompt_tokens_per_s,  -- prompt tokens of requests that got their first token
  computed_tokens / nullif(dt_s, 0) AS computed_tokens_per_s  -- of them, computed
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
