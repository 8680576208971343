-- Objectives, their alerts, and what is to be sent. Written by app/alerts only.

-- One row: an objective that was made in the dashboard. Those of a file are not stored.
CREATE TABLE slo (
  name VARCHAR NOT NULL,
  definition VARCHAR NOT NULL,        -- JSON, the keys of a [[slo]] table
  changed_ts DOUBLE NOT NULL
);

-- One row: events of one indicator that became known at one instant, so that a long period needs no raw samples.
CREATE TABLE slo_point (
  indicator VARCHAR NOT NULL,         -- hash of what is measured: kind, thresholds, selectors
  ts DOUBLE NOT NULL,
  total DOUBLE NOT NULL,              -- events
  bad DOUBLE NOT NULL,
  least DOUBLE NOT NULL,              -- bounds of bad, where it is interpolated
  most DOUBLE NOT NULL
);

-- One row: the last evaluation of an objective.
CREATE TABLE slo_status (
  slo VARCHAR NOT NULL,
  ts DOUBLE NOT NULL,
  status VARCHAR NOT NULL             -- JSON: burns, budget, source, notes
);

-- One row: where the alert of an objective and severity stands.
CREATE TABLE alert_state (
  slo VARCHAR NOT NULL,
  severity VARCHAR NOT NULL,          -- page | ticket
  state VARCHAR NOT NULL              -- JSON: analyzers.alert.State
);

-- One row: an alert that fired.
CREATE SEQUENCE alert_id_seq;
CREATE TABLE alert (
  alert_id BIGINT NOT NULL,
  slo VARCHAR NOT NULL,
  severity VARCHAR NOT NULL,
  origin VARCHAR NOT NULL,            -- live | replay (of a recording, from the dashboard: never sent)
  began_ts DOUBLE NOT NULL,           -- when the burn began
  fired_ts DOUBLE NOT NULL,
  resolved_ts DOUBLE,                 -- NULL: still firing
  burn DOUBLE,                        -- over the long window, when it fired
  diagnosis VARCHAR NOT NULL,         -- JSON: limiting link, seconds, evidence, what to try; or why it cannot be told
  noticed BOOLEAN NOT NULL,           -- its notification was put into the outbox
  acknowledged_ts DOUBLE,
  acknowledged_by VARCHAR
);

-- One row: something that happened to an alert.
CREATE TABLE alert_event (
  alert_id BIGINT NOT NULL,
  ts DOUBLE NOT NULL,
  kind VARCHAR NOT NULL,              -- fired | resolved | acknowledged | unknown | known | diagnosed | silenced | sent | dead
  said VARCHAR NOT NULL
);

-- One row: a span in which nothing is sent.
CREATE SEQUENCE silence_id_seq;
CREATE TABLE silence (
  silence_id BIGINT NOT NULL,
  slo VARCHAR,                        -- NULL: all objectives
  severity VARCHAR,                   -- NULL: both
  start_ts DOUBLE NOT NULL,
  end_ts DOUBLE NOT NULL,
  reason VARCHAR NOT NULL
);

-- One row: a notification, from the transaction that changed the alert until long after it was sent. One notifier's rows go
-- out in the order of their ids.
CREATE SEQUENCE outbox_id_seq;
CREATE TABLE outbox (
  outbox_id BIGINT NOT NULL,
  notifier VARCHAR NOT NULL,
  alert_id BIGINT NOT NULL,
  kind VARCHAR NOT NULL,              -- firing | resolved
  token VARCHAR NOT NULL,             -- the same at every attempt: a receiver can tell a repetition
  body VARCHAR NOT NULL,              -- JSON: what the message is made of
  created_ts DOUBLE NOT NULL,
  attempts BIGINT NOT NULL,
  next_ts DOUBLE NOT NULL,            -- not before
  sent_ts DOUBLE,
  dead_ts DOUBLE,                     -- given up: the dead letter stays here
  error VARCHAR                       -- of the last attempt
);
