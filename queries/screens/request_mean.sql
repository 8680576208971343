-- One row: mean seconds over the window, from the sums of the histograms. Parameters: $low, $high (epoch seconds), $engines.
SELECT
  sum(queue_s) / nullif(sum(queue_n), 0) AS queue_s,
  sum(prefill_s) / nullif(sum(prefill_n), 0) AS prefill_s,
  sum(decode_s) / nullif(sum(decode_n), 0) AS decode_s,
  sum(ttft_s) / nullif(sum(ttft_n), 0) AS ttft_s,
  sum(itl_s) / nullif(sum(itl_n), 0) AS itl_s,
  sum(e2e_s) / nullif(sum(e2e_n), 0) AS e2e_s,
  sum(decode_s) / nullif(sum(request_output_tokens) - sum(e2e_n), 0) AS tpot_s  -- per output token after the first
FROM interval_row
WHERE ts > $low AND ts <= $high AND list_contains($engines, coalesce(instance, '') || '/' || engine);
