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

-- The task whose workers handle a job when it is due, if that is not the job's own: a webhook has that of its job.
alter table onejob.jobs add column publisher_task text;
update onejob.jobs as jobs set publisher_task = followed.task from onejob.jobs as followed
where jobs.task = 'onejob.webhook' and followed.id = jobs.follows_id;
-- Every job that has not ended has a wake_at, a follower and the job that is queued next, too.
update onejob.jobs set wake_at = created_at + lease where wake_at is null and finished_at is null;
-- A sweep finds in three indexes the runs whose lease has expired, the jobs that the workers of one task handle, and
-- the ended jobs that any worker releases or purges. No row is in two of them.
drop index onejob.jobs_wake;
create index jobs_wake on onejob.jobs (coalesce(publisher_task, task), wake_at)
  where lease_until is null and (finished_at is null or canvas_pending);
create index jobs_ended on onejob.jobs (wake_at) where finished_at is not null and not canvas_pending;
-- Only followers that have not ended: a purge looks for them, and ended ones may be many.
drop index onejob.jobs_follows_id;
create index jobs_follows_id on onejob.jobs (follows_id) where follows_id is not null and finished_at is null;
-- What each worker has registered, as JSON: its tasks, queues and pool.
alter table onejob.workers add column registration text not null default '{}';

-- Publication: where the messages of a job are sent, resolved by its submitter (empty: not resolved), and why the last
-- attempt to send one failed.
alter table onejob.jobs add column route text not null default '';
alter table onejob.jobs add column publish_error text not null default '';
