-- One row: requests that arrived in a moment with prompts far longer than usual. Parameters: $low, $high (epoch seconds, of the
-- window), $from, $to (of the moment), $instances.
WITH chosen AS (
  SELECT arrival_ts, prompt_tokens FROM request_row
  WHERE end_ts > $low AND end_ts <= $high AND list_contains($instances, coalesce(instance, '')) AND arrival_ts IS NOT NULL
), usual AS (
  SELECT median(prompt_tokens) AS tokens FROM chosen
)
SELECT
  count(*) AS n,
  avg(prompt_tokens) AS prompt_tokens,                 -- their mean
  max(arrival_ts) - min(arrival_ts) AS spread_s,       -- from the first to the last of them
  min(arrival_ts) AS first_ts
FROM chosen, usual
WHERE arrival_ts >= $from AND arrival_ts <= $to AND prompt_tokens >= 4 * tokens;
