-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table onejob.ledger_info (
  id text primary key
);
insert into onejob.ledger_info (id) values (gen_random_uuid()::text);

-- The jobs of one submitter are listed without reading those of the others.
create index jobs_submitter on onejob.jobs (submitter, created_at, id) where submitter <> '';

-- The numbers of the duplicates of one job, by submitter and outcome, and of its redelivered messages.
create table onejob.duplicate_counts (
  job_id text not null references onejob.jobs (id) on delete cascade,
  submitter text not null,
  outcome text not null,
  count bigint not null,
  primary key (job_id, submitter, outcome)
) with (fillfactor = 80);
-- The same numbers of all deleted jobs, by task. They replace duplicate_stats.
create table onejob.duplicate_sums (
  task text not null,
  submitter text not null,
  outcome text not null,
  count bigint not null,
  primary key (task, submitter, outcome)
);
insert into onejob.duplicate_sums (task, submitter, outcome, count)
select task, submitter, outcome, sum(count) from onejob.duplicate_stats group by task, submitter, outcome;
-- The nonces of the last eight duplicates. A submission that waited for the row finds its own repetition here.
alter table onejob.jobs add column duplicate_nonces text not null default '';

-- The events that webhooks report, each stored once for all webhooks of a job, and until when it is needed.
create table onejob.webhook_events (
  id text primary key,
  body text not null,
  until double precision not null
);
create index webhook_events_until on onejob.webhook_events (until);

-- What operators did, and which requests were refused; `entry` is JSON.
create table onejob.audit_log (
  id bigint generated always as identity primary key,
  at double precision not null,
  entry text not null
);
