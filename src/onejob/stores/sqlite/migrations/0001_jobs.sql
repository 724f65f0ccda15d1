-- The ledger: jobs, their memoised steps and their histories.
-- Times are seconds since the epoch; payload, progress, result and error are JSON texts, kept byte for byte.
create table jobs (
  id text primary key,
  task text not null,
  identity text not null,
  fingerprint text not null,
  submission text not null,
  payload text not null,
  state text not null,
  holds integer not null,
  identity_until real,
  leader text,
  token integer not null,
  claim text not null,
  node text not null,
  attempt integer not null,
  retries integer not null,
  crashes integer not null,
  lease real not null,
  lease_until real,
  created_at real not null,
  run_at real not null,
  expires_at real,
  started_at real,
  finished_at real,
  wake_at real,
  published integer not null,
  cancel integer not null,
  undelivered integer not null,
  duplicates integer not null,
  progress text,
  result text,
  error text,
  reason text not null,
  requests text not null
) strict;

-- The invariant: one live job per identity.
create unique index jobs_identity on jobs (identity) where holds;
create index jobs_wake on jobs (wake_at) where wake_at is not null;
create index jobs_created on jobs (created_at);
create index jobs_leader on jobs (leader) where leader is not null;

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
