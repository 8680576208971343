-- One row: how many requests with a clock ended in the window. Parameters: $low, $high (epoch seconds), $instances.
SELECT count(*) AS n
FROM request_row
WHERE end_ts > $low AND end_ts <= $high AND list_contains($instances, coalesce(instance, '')) AND arrival_ts IS NOT NULL;
