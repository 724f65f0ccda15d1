-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table ledger_info (
  id text primary key
);
insert into ledger_info (id) values (lower(hex(randomblob(16))));

-- The jobs of one submitter are listed without reading those of the others.
create index jobs_submitter on jobs (submitter, created_at, id) where submitter <> '';

-- The numbers of the duplicates of one job, by submitter and outcome, and of its redelivered messages.
create table duplicate_counts (
  job_id text not null references jobs (id) on delete cascade,
  submitter text not null,
  outcome text not null,
  count integer not null,
  primary key (job_id, submitter, outcome)
) strict, without rowid;
-- The same numbers of all deleted jobs, by task. They replace duplicate_stats.
create table duplicate_sums (
  task text not null,
  submitter text not null,
  outcome text not null,
  count integer not null,
  primary key (task, submitter, outcome)
) strict, without rowid;
insert into duplicate_sums (task, submitter, outcome, count)
select task, submitter, outcome, sum(count) from duplicate_stats group by task, submitter, outcome;

-- The events that webhooks report, each stored once for all webhooks of a job, and until when it is needed.
create table webhook_events (
  id text primary key,
  body text not null,
  until real not null
);
create index webhook_events_until on webhook_events (until);

-- What operators did, and which requests were refused; `entry` is JSON.
create table audit_log (
  id integer primary key,
  at real not null,
  entry text not null
);
