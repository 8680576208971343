-- One row: a slice of time in which a server answered a scrape.
SELECT
  instance,
  max(ts) AS ts  -- the last answer in the slice
FROM scrape
WHERE ok AND timed AND ts > $low AND ts <= $high AND list_contains($instances, instance)
GROUP BY instance, floor(ts / $slice)
ORDER BY ts, instance;
