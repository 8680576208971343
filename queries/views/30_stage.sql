-- One row: measured seconds of one engine's requests in one scrape interval, by stage. Phases are recorded when a request
-- finishes, TTFT when its first token comes: sums over short intervals are of different requests.
CREATE OR REPLACE VIEW stage AS
SELECT
  instance, engine, ts, dt_s,
  e2e_n AS finished_n,
  ttft_n AS first_token_n,
  e2e_s, ttft_s, queue_s, prefill_s, decode_s,
  running, waiting, kv_usage_ratio
FROM interval_row;
