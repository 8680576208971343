-- One row: drafts in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: spec_decode, stat.
SELECT
  ts,  -- end of the scrape interval
  accepted_tokens / nullif(draft_tokens, 0) AS accepted_ratio,  -- share of drafted tokens accepted
  1 + accepted_tokens / nullif(draft_n, 0) AS tokens_per_step,  -- tokens a sequence gets a step
  itl_s / nullif(itl_n, 0) AS itl_s  -- mean gap between outputs: the step
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
