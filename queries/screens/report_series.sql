-- One row: one of at most $points equal spans of a window and one engine, for the charts of a report.
-- Parameters: $low, $high (epoch seconds), $points.
SELECT
  instance || '/' || engine AS engine,                                       -- instance and engine label
  min(ts) + (max(ts) - min(ts)) / 2 AS ts,                                   -- middle of the span
  max(waiting_high) AS waiting,                                                   -- most requests waiting at a scrape
  max(running_high) AS running,                                                   -- most requests running at a scrape
  max(kv_usage_high_ratio) AS kv_usage_ratio,                                     -- highest share of KV blocks in use
  sum(ttft_s) / nullif(sum(ttft_n), 0) AS ttft_s,                            -- mean TTFT of first tokens in the span
  sum(decode_s) / nullif(sum(request_output_tokens) - sum(e2e_n), 0) AS tpot_s,  -- TPOT of requests finished in the span
  sum(coalesce(computed_tokens, prompt_tokens)) / nullif(sum(dt_s), 0) AS prompt_tokens_per_s,  -- prompt tokens computed a second
  sum(generation_tokens) / nullif(sum(dt_s), 0) AS generation_tokens_per_s,  -- tokens generated a second
  sum(preemptions) AS preemptions                                            -- preemptions in the span
FROM interval_row
WHERE timed AND ts > $low AND ts <= $high
GROUP BY instance, engine, floor((ts - $low) / greatest(($high - $low) / $points, 1e-3))
ORDER BY engine, ts;
