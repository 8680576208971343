-- Experiments: a change with its prediction, and what came of it. Written by app/experiments only.

-- One row: an experiment.
CREATE SEQUENCE experiment_id_seq;
CREATE TABLE experiment (
  experiment_id BIGINT NOT NULL,
  hypothesis VARCHAR NOT NULL,        -- name of the change
  started_ts DOUBLE NOT NULL,
  before_name VARCHAR NOT NULL,       -- the recording before the change: its bundle's name
  before_path VARCHAR,                -- and where it lies, so that it can be read again; NULL: it is in the store only
  prediction VARCHAR NOT NULL,        -- JSON: the hypothesis as `weaklink hypotheses` prints it; made from the recording before alone
  after_name VARCHAR,                 -- the recording after the change; NULL: not attached yet
  judged_ts DOUBLE,
  judgement VARCHAR                   -- JSON: verdict, effect and range by target, as `weaklink experiment judge` prints them
);
