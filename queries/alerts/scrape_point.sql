-- One row: an attempt to scrape a server in the span.
SELECT
  instance,
  ts,
  bool_or(ok) AS ok
FROM scrape
WHERE timed AND ts > $low AND ts <= $high AND list_contains($instances, instance)
GROUP BY instance, ts
ORDER BY ts, instance;
