-- One row: a balancedness line of the log (usable from vLLM 0.33 only: earlier versions take another axis).
-- Parameters: $instance, $engine (unused: the line is of the instance), $low, $high (epoch seconds).
-- Log lines: eplb, rearrange.
SELECT
  ts,                                                                    -- when the line was written
  json_extract(fields, '$.avg_tokens')::DOUBLE AS avg_tokens,            -- mean load of a rank, summed over layers
  json_extract(fields, '$.max_tokens')::DOUBLE AS max_tokens,            -- load of the busiest rank, summed over layers
  json_extract(fields, '$.balancedness')::DOUBLE AS balancedness_ratio   -- mean / max
FROM event_row
WHERE kind = 'eplb' AND instance IS NOT DISTINCT FROM $instance AND $engine IS NOT NULL AND ts >= $low AND ts <= $high
ORDER BY ts;
