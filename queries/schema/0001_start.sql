-- The first schema. Readers fill these tables with vLLM's own names and units; queries/views makes them comparable.

-- One row: a file (or archive member) that was loaded. The content hash makes loading it again add nothing.
CREATE SEQUENCE file_id_seq;
CREATE TABLE source_file (
  file_id BIGINT PRIMARY KEY DEFAULT nextval('file_id_seq'),
  bundle VARCHAR NOT NULL,            -- the folder, archive or file that the user named
  name VARCHAR NOT NULL,              -- path inside the bundle
  format VARCHAR,                     -- name of the reader; NULL: not recognised
  sha256 VARCHAR NOT NULL,            -- of the bytes as stored in the bundle
  bytes BIGINT NOT NULL,
  lines BIGINT NOT NULL DEFAULT 0,    -- lines read
  rejected BIGINT NOT NULL DEFAULT 0, -- lines that could not be read, see rejected_line
  instance VARCHAR,                   -- the server whose recording this is; NULL: not known, or several
  pid VARCHAR,                        -- process id of the API server, joins spans to a server
  clock_offset_s DOUBLE,              -- container clock minus the log's own stamps, where a log shows both
  loaded_at DOUBLE NOT NULL           -- epoch seconds
);

-- One row: a line that was not understood (the first few of a file).
CREATE TABLE rejected_line (
  file_id BIGINT NOT NULL,
  line BIGINT NOT NULL,               -- 1-based
  reason VARCHAR NOT NULL             -- what was expected; never the text itself
);

-- One row: a Prometheus series. Labels live here, never beside a sample.
CREATE SEQUENCE series_id_seq;
CREATE TABLE series (
  series_id BIGINT PRIMARY KEY DEFAULT nextval('series_id_seq'),
  instance VARCHAR,                   -- host:port of the scrape; NULL until the bundle is resolved
  name VARCHAR NOT NULL,              -- as exposed, with its suffix (_total, _sum, _bucket)
  engine VARCHAR,                     -- label `engine`; NULL: the series has none
  model_name VARCHAR,                 -- label `model_name`
  labels VARCHAR NOT NULL             -- the other labels, JSON object with sorted keys
);

-- One row: one number at one instant.
CREATE TABLE sample (
  series_id BIGINT NOT NULL,
  ts DOUBLE NOT NULL,
  value DOUBLE NOT NULL
);

-- One row: an attempt to scrape an instance.
CREATE TABLE scrape (
  file_id BIGINT NOT NULL,
  instance VARCHAR,
  ts DOUBLE NOT NULL,                 -- when its samples were taken (sent + duration); an order of texts where timed is false
  duration_s DOUBLE,                  -- how long the server took to answer
  ok BOOLEAN NOT NULL,
  timed BOOLEAN NOT NULL              -- false: a text without a time
);

-- One row: a request, as one source saw it (span: the server; client: the load generator or gateway).
CREATE TABLE request (
  file_id BIGINT NOT NULL,
  line BIGINT NOT NULL,
  source VARCHAR NOT NULL,            -- span | client
  instance VARCHAR,
  pid VARCHAR,                        -- process id in a span's resource
  service VARCHAR,                    -- service.name in a span's resource
  request_id VARCHAR,                 -- vLLM's external id, choice suffix removed
  trace_id VARCHAR,                   -- 32 hex digits
  arrival_ts DOUBLE,                  -- span: arrival in the API server; client: sent
  end_ts DOUBLE,
  prompt_tokens BIGINT,
  output_tokens BIGINT,
  cached_tokens BIGINT,
  ttft_s DOUBLE,                      -- by this source's clock
  queue_s DOUBLE,
  prefill_s DOUBLE,
  decode_s DOUBLE,
  e2e_s DOUBLE,
  status VARCHAR,                     -- ok | error | abort | timeout ...
  finish_reason VARCHAR,
  chunk_s FLOAT[]                     -- client: seconds from sending to each streamed chunk
);

-- One row: a periodic stats line of the log. Rates are vLLM's averages over its interval.
CREATE TABLE stat (
  file_id BIGINT NOT NULL,
  line BIGINT NOT NULL,
  ts DOUBLE,
  engine VARCHAR NOT NULL,            -- as the `engine` label: '0', '1', ...
  prompt_tokens_per_s DOUBLE,
  generation_tokens_per_s DOUBLE,
  running DOUBLE,
  waiting DOUBLE,
  deferred DOUBLE,
  kv_usage_ratio DOUBLE,
  prefix_hit_ratio DOUBLE,            -- over the last 1000 requests, not the interval
  external_hit_ratio DOUBLE,
  mm_hit_ratio DOUBLE
);

-- One row: an engine step (iteration line).
CREATE TABLE step (
  file_id BIGINT NOT NULL,
  line BIGINT NOT NULL,
  ts DOUBLE,                          -- when the line was written
  fine BOOLEAN NOT NULL,              -- ts has milliseconds (JSON log); else whole seconds
  engine VARCHAR NOT NULL,
  iteration BIGINT,
  context_requests BIGINT,
  context_tokens BIGINT,
  generation_requests BIGINT,
  generation_tokens BIGINT,
  elapsed_s DOUBLE,                   -- a residual wait under asynchronous scheduling, not the step
  kv_usage_ratio DOUBLE,
  dummy BOOLEAN NOT NULL
);

-- One row: something that happened. `fields` is a JSON object, its keys by kind:
--   start {version, model}   args {name: value}   config {name: value}   listening {host, port}   command {argv}
--   model_config {as in config.json}   budget {max_num_batched_tokens}   kv_cache {tokens}   graph {max_size}
--   spec_decode {acceptance_length, accepted_tokens, drafted_tokens, draft_acceptance_ratio, position_ratios}
--   eplb {step, model, avg_tokens, max_tokens, balancedness, steps_left}   rearrange {text}   jit {kernel, text}
--   aborted {count}   access {method, path, status, count}   preempted_v0 {count, mode}   failed {text}   death {text}
--   kv_transfer {name: value}   aggregate {engines, columns of stat}   requests_logged {received, added}   prefix_reset {}
--   memory {kv_gib | model_gib}   device {name}
--   bench {as in vLLM's result: completed, duration, request_rate, ...}   client {concurrency}
--   aligned {offset_s, error_s, lines, applied}: not in the file, but found when it was loaded
--   async_scheduling {}   sync_scheduling {}   api_servers {count}   log_skipped {stats: why}
CREATE TABLE event (
  file_id BIGINT NOT NULL,
  line BIGINT NOT NULL,
  ts DOUBLE,
  engine VARCHAR,
  kind VARCHAR NOT NULL,
  fields VARCHAR NOT NULL
);

-- One row: a KV cache event. Hashes are kept, token ids are not.
CREATE TABLE kv_event (
  file_id BIGINT NOT NULL,
  line BIGINT NOT NULL,
  instance VARCHAR,
  ts DOUBLE NOT NULL,
  engine VARCHAR NOT NULL,            -- data-parallel rank
  source VARCHAR NOT NULL,            -- topic and endpoint: one sequence of seq
  seq BIGINT,
  kind VARCHAR NOT NULL,              -- stored | removed | cleared
  block_hashes VARCHAR[],
  block_size BIGINT,
  medium VARCHAR,
  salt VARCHAR                        -- hash of the first block's extra keys; NULL: none
);
