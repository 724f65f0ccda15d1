-- The ledger: jobs, their memoised steps and their histories.
-- Times are seconds since the epoch; payload, progress, result and error are JSON texts, kept byte for byte.
create table onejob.jobs (
  id text primary key,
  task text not null,
  identity text not null,
  fingerprint text not null,
  submission text not null,
  payload text not null,
  state text not null,
  holds boolean not null,
  identity_until double precision,
  leader text,
  token bigint not null,
  claim text not null,
  node text not null,
  attempt integer not null,
  retries integer not null,
  crashes integer not null,
  lease double precision not null,
  lease_until double precision,
  created_at double precision not null,
  run_at double precision not null,
  expires_at double precision,
  started_at double precision,
  finished_at double precision,
  wake_at double precision,
  published integer not null,
  cancel integer not null,
  undelivered boolean not null,
  duplicates integer not null,
  progress text,
  result text,
  error text,
  reason text not null,
  requests text not null,
  entries integer not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- The invariant: one live job per identity.
create unique index jobs_identity on onejob.jobs (identity) where holds;
create index jobs_wake on onejob.jobs (wake_at) where wake_at is not null;
create index jobs_created on onejob.jobs (created_at, id);
create index jobs_leader on onejob.jobs (leader) where leader is not null;

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
