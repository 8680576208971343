-- One row: transfers and deferred requests in one scrape interval.
-- Parameters: $instance, $engine, $low, $high (epoch seconds).
-- Log lines: kv_transfer, stat.
SELECT
  ts,  -- end of the scrape interval
  deferred AS deferred,  -- requests waiting for KV blocks that are on the way, at its end
  nixl_transfer_s / nullif(nixl_transfer_n, 0) AS transfer_s,  -- mean seconds of a transfer on the wire
  coalesce(nixl_bytes, offload_load_bytes) / nullif(dt_s, 0) AS bytes_per_s,  -- bytes moved a second
  offload_load_s AS load_s  -- seconds of loads from the offload tier
FROM interval_row
WHERE instance IS NOT DISTINCT FROM $instance AND engine = $engine AND ts > $low AND ts <= $high
ORDER BY ts;
