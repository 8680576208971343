-- One row: a request that ended in the span: the server's record of it where that server writes spans, else its client's.
WITH ended AS (
  SELECT * FROM request WHERE end_ts > $low AND end_ts <= $high AND list_contains($instances, coalesce(instance, ''))
)
SELECT
  instance,
  end_ts AS ts,
  source,         -- span | client
  ttft_s,         -- seconds by that record's clock; NULL: not told
  queue_s,
  e2e_s,
  CASE WHEN output_tokens > 1 THEN coalesce(decode_s, e2e_s - ttft_s) / (output_tokens - 1) END AS tpot_s,  -- NULL: one token
  coalesce(status, 'ok') AS status
FROM ended
QUALIFY $all OR source = 'span' OR NOT bool_or(source = 'span') OVER (PARTITION BY instance)
ORDER BY ts;
