-- The ledger: jobs, their memoised steps, their histories, and their duplicates.
-- Times are seconds since the epoch; payload, options, progress, result and error are JSON, stored byte for byte.
create table onejob.jobs (
  id text primary key,
  task text not null,
  identity text not null,
  fingerprint text not null,
  submission_nonce text not null,
  submitter text not null,
  payload text not null,
  options text not null,
  priority_rank integer not null,
  state text not null default 'queued',
  holds_identity boolean not null default false,
  queued_next boolean not null default false,
  identity_until double precision,
  follows_id text,
  token bigint not null default 0,
  claim text not null default '',
  node text not null default '',
  attempt integer not null default 0,
  retries integer not null,
  crashes integer not null default 0,
  lease double precision not null,
  lease_until double precision,
  created_at double precision not null,
  run_at double precision not null,
  expires_at double precision,
  started_at double precision,
  finished_at double precision,
  wake_at double precision,
  published integer not null default 0,
  cancel integer not null default 0,
  canvas_pending boolean not null,
  key_retained_until double precision,
  duplicate_count integer not null default 0,
  progress text,
  result text,
  error text,
  reason text not null,
  requests text not null default '',
  -- How many history entries the job has had; the outcome of the last submission that wrote or updated the row, and
  -- whether it rescheduled the job: RETURNING has access to the new row only.
  entries integer not null default 1,
  outcome text not null default '',
  rescheduled boolean not null default false
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- The invariant: one live job per identity.
create unique index jobs_identity on onejob.jobs (identity) where holds_identity;
-- At most one job is queued next per identity.
create unique index jobs_queued_next on onejob.jobs (identity) where queued_next;
-- Running jobs have an index of their own, so that a sweep finds expired leases before other jobs that are due.
create index jobs_wake on onejob.jobs (wake_at) where wake_at is not null and lease_until is null;
create index jobs_lease on onejob.jobs (wake_at) where lease_until is not null;
create index jobs_created on onejob.jobs (created_at, id);
create index jobs_follows_id on onejob.jobs (follows_id) where follows_id is not null;

create table onejob.steps (
  job_id text not null references onejob.jobs (id) on delete cascade,
  name text not null,
  value text not null,
  primary key (job_id, name)
);

create table onejob.history (
  job_id text not null references onejob.jobs (id) on delete cascade,
  seq integer not null,
  at double precision not null,
  event text not null,
  state text not null,
  attempt integer not null,
  node text not null,
  detail text not null,
  primary key (job_id, seq)
);

-- The newest duplicates of a job, as a ring buffer of slots. Slot -1 is the latest redelivered message.
create table onejob.duplicates (
  job_id text not null references onejob.jobs (id) on delete cascade,
  slot integer not null,
  at double precision not null,
  submission_nonce text not null,
  outcome text not null,
  answered_by text not null,
  source text not null,
  submitter text not null,
  host text not null,
  fingerprint text not null,
  arguments_differ boolean not null,
  rescheduled boolean not null,
  primary key (job_id, slot)
);

-- The numbers of all duplicates, never deleted.
create table onejob.duplicate_stats (
  task text not null,
  identity text not null,
  submitter text not null,
  outcome text not null,
  count bigint not null,
  primary key (identity, submitter, outcome, task)
);

-- How purged jobs had ended.
create table onejob.tombstones (
  id text primary key,
  state text not null,
  finished_at double precision not null,
  purged_at double precision not null,
  until double precision not null
);
create index tombstones_until on onejob.tombstones (until);

-- Idempotency keys. One that an open transaction has reserved has no job yet.
create table onejob.keys (
  key text primary key,
  job_id text references onejob.jobs (id) on delete cascade,
  fingerprint text not null,
  until double precision not null
);
create index keys_job on onejob.keys (job_id);

-- The latest heartbeat of each worker, and when it expires.
create table onejob.workers (
  name text primary key,
  seen_at double precision not null,
  until double precision not null
);

-- Metrics totals, never deleted.
create table onejob.metrics (
  name text primary key,
  total double precision not null
) with (fillfactor = 50);

-- Uses of each quota in the window that began with its first use. Later uses of any quota delete expired windows.
create table onejob.quotas (
  name text primary key,
  used integer not null,
  until double precision not null,
  requests text not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index quotas_until on onejob.quotas (until);
