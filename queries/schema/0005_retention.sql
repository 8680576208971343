-- Closed days and retention. Written by app/retention only.

-- Only what is collected live grows old; a recording that somebody loaded stays until it is taken out.
ALTER TABLE source_file ADD COLUMN live BOOLEAN DEFAULT false;
UPDATE source_file SET live = true WHERE bundle = 'live' OR bundle LIKE 'prometheus %';

-- One row: a Parquet file beside the database with rows of closed days; views/05_* read it together with the table.
CREATE SEQUENCE segment_id_seq;
CREATE TABLE segment (
  segment_id BIGINT NOT NULL,
  name VARCHAR NOT NULL,              -- the table: sample | step | kv_event
  day VARCHAR NOT NULL,               -- UTC, 2026-11-29
  level VARCHAR NOT NULL,             -- all | minute | hour: one sample of each series every so often
  file VARCHAR NOT NULL,              -- below the folder of segments
  count BIGINT NOT NULL,              -- rows in it
  bytes BIGINT NOT NULL,
  low_ts DOUBLE NOT NULL,
  high_ts DOUBLE NOT NULL
);

-- One row: what a gauge did between two samples that were kept, where those between were not.
CREATE TABLE gauge_span (
  series_id BIGINT NOT NULL,
  ts DOUBLE NOT NULL,                 -- of the sample at its end
  seconds DOUBLE NOT NULL,
  low DOUBLE NOT NULL,
  mean DOUBLE NOT NULL,               -- over time
  high DOUBLE NOT NULL
);

-- One row: a day that is not kept whole any more.
CREATE TABLE thinned (
  day VARCHAR NOT NULL,               -- UTC
  level VARCHAR NOT NULL,             -- minute | hour | none
  done_ts DOUBLE NOT NULL
);

-- One row: something that was done to the store, or happened to it.
CREATE TABLE journal (
  ts DOUBLE NOT NULL,
  who VARCHAR,                        -- the user, as the login names them; NULL: the program itself
  kind VARCHAR NOT NULL,              -- killed | full | room | backup | restore | upload | export | slo | login ...
  said VARCHAR NOT NULL
);

-- One row: the process that holds the store, or held it last.
CREATE TABLE alive (
  pid BIGINT NOT NULL,
  started_ts DOUBLE NOT NULL,
  ts DOUBLE NOT NULL,                 -- when it was last seen
  ended BOOLEAN NOT NULL              -- it closed the store: nothing was cut off
);

-- One row: how much disk the store took at an instant, database and closed days.
CREATE TABLE size (
  ts DOUBLE NOT NULL,
  bytes BIGINT NOT NULL
);
