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

-- The task whose workers handle a job when it is due, if that is not the job's own: a webhook has that of its job.
alter table jobs add column publisher_task text;
update jobs set publisher_task = (select task from jobs as followed where followed.id = jobs.follows_id)
where task = 'onejob.webhook';
-- Every job that has not ended has a wake_at, a follower and the job that is queued next, too.
update jobs set wake_at = created_at + lease where wake_at is null and finished_at is null;
-- A sweep finds in three indexes the runs whose lease has expired, the jobs that the workers of one task handle, and
-- the ended jobs that any worker releases or purges. No row is in two of them.
drop index jobs_wake;
create index jobs_wake on jobs (coalesce(publisher_task, task), wake_at)
  where lease_until is null and (finished_at is null or canvas_pending);
create index jobs_ended on jobs (wake_at) where finished_at is not null and not canvas_pending;
-- Only followers that have not ended: a purge looks for them, and ended ones may be many.
drop index jobs_follows_id;
create index jobs_follows_id on jobs (follows_id) where follows_id is not null and finished_at is null;
-- What each worker has registered, as JSON: its tasks, queues and pool.
alter table workers add column registration text not null default '{}';

-- Publication: where the messages of a job are sent, resolved by its submitter (empty: not resolved), and why the last
-- attempt to send one failed.
alter table jobs add column route text not null default '';
alter table jobs add column publish_error text not null default '';
