-- Incidents that somebody kept, with what was noted about them. Written by app/incident/kept.py only.

-- One row: an incident: a window of the store, and how its report is made.
CREATE SEQUENCE incident_id_seq;
CREATE TABLE incident (
  incident_id BIGINT NOT NULL,
  made_ts DOUBLE NOT NULL,            -- when it was kept
  title VARCHAR NOT NULL,             -- '' : the verdict
  note VARCHAR NOT NULL,              -- what stands in the report
  verdict VARCHAR NOT NULL,           -- the summary sentence when it was kept
  start_ts DOUBLE,                    -- NULL: from the first sample on
  end_ts DOUBLE,                      -- NULL: to the last
  engines VARCHAR[],                  -- host:port/label; NULL: all
  slo VARCHAR NOT NULL,               -- JSON: seconds by target
  alert_id BIGINT,                    -- the alert that it was opened from
  baseline_start_ts DOUBLE,           -- the window that it is compared to; both NULL: none
  baseline_end_ts DOUBLE,
  baseline_engines VARCHAR[]
);

-- One row: something noted about an incident later.
CREATE TABLE incident_note (
  incident_id BIGINT NOT NULL,
  ts DOUBLE NOT NULL,
  said VARCHAR NOT NULL
);
