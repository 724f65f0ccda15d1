-- The ledger: jobs, their memoised steps, their histories, and their duplicates.
-- Times are seconds since the epoch; payload, options, progress, result and error are JSON, stored byte for byte.
create table jobs (
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
  holds_identity integer not null default 0,
  queued_next integer not null default 0,
  identity_until real,
  follows_id text,
  token integer not null default 0,
  claim text not null default '',
  node text not null default '',
  attempt integer not null default 0,
  retries integer not null,
  crashes integer not null default 0,
  lease real not null,
  lease_until real,
  created_at real not null,
  run_at real not null,
  expires_at real,
  started_at real,
  finished_at real,
  wake_at real,
  published integer not null default 0,
  cancel integer not null default 0,
  canvas_pending integer not null,
  key_retained_until real,
  duplicate_count integer not null default 0,
  progress text,
  result text,
  error text,
  reason text not null,
  requests text not null default ''
) strict;

-- The invariant: one live job per identity.
create unique index jobs_identity on jobs (identity) where holds_identity;
-- At most one job is queued next per identity.
create unique index jobs_queued_next on jobs (identity) where queued_next;
-- Running jobs have an index of their own, so that a sweep finds expired leases before other jobs that are due.
create index jobs_wake on jobs (wake_at) where wake_at is not null and lease_until is null;
create index jobs_lease on jobs (wake_at) where lease_until is not null;
create index jobs_created on jobs (created_at);
create index jobs_follows_id on jobs (follows_id) where follows_id is not null;

create table steps (
  job_id text not null references jobs (id) on delete cascade,
  name text not null,
  value text not null,
  primary key (job_id, name)
) strict, without rowid;

create table history (
  job_id text not null references jobs (id) on delete cascade,
  seq integer not null,
  at real not null,
  event text not null,
  state text not null,
  attempt integer not null,
  node text not null,
  detail text not null,
  primary key (job_id, seq)
) strict, without rowid;

-- The newest duplicates of a job, as a ring buffer of slots. Slot -1 is the latest redelivered message.
create table duplicates (
  job_id text not null references jobs (id) on delete cascade,
  slot integer not null,
  at real not null,
  submission_nonce text not null,
  outcome text not null,
  answered_by text not null,
  source text not null,
  submitter text not null,
  host text not null,
  fingerprint text not null,
  arguments_differ integer not null,
  rescheduled integer not null,
  primary key (job_id, slot)
) strict, without rowid;

-- The numbers of all duplicates, never deleted.
create table duplicate_stats (
  task text not null,
  identity text not null,
  submitter text not null,
  outcome text not null,
  count integer not null,
  primary key (identity, submitter, outcome, task)
) strict, without rowid;

-- How purged jobs had ended.
create table tombstones (
  id text primary key,
  state text not null,
  finished_at real not null,
  purged_at real not null,
  until real not null
) strict, without rowid;
create index tombstones_until on tombstones (until);

create table keys (
  key text primary key,
  job_id text not null references jobs (id) on delete cascade,
  fingerprint text not null,
  until real not null
) strict, without rowid;
create index keys_job on keys (job_id);

-- The latest heartbeat of each worker, and when it expires.
create table workers (
  name text primary key,
  seen_at real not null,
  until real not null
) strict, without rowid;

-- Metrics totals, never deleted.
create table metrics (
  name text primary key,
  total real not null
) strict, without rowid;

-- Uses of each quota in the window that began with its first use. Later uses of any quota delete expired windows.
create table quotas (
  name text primary key,
  used integer not null,
  until real not null,
  requests text not null
) strict, without rowid;
create index quotas_until on quotas (until);
