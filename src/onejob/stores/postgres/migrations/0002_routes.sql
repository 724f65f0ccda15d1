-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table onejob.ledger_info (
  id text primary key
);
insert into onejob.ledger_info (id) values (gen_random_uuid()::text);

-- The task whose workers handle a job when it is due, if that is not the job's own: a webhook has that of its job.
alter table onejob.jobs add column wake_task text;
update onejob.jobs as jobs set wake_task = followed.task from onejob.jobs as followed
where jobs.task = 'onejob.webhook' and followed.id = jobs.follows_id;
-- Every job that has not ended has a wake_at, a follower and the job that is queued next, too.
update onejob.jobs set wake_at = created_at + lease where wake_at is null and finished_at is null;
-- A sweep finds in three indexes the runs whose lease has expired, the jobs that the workers of one task handle, and
-- the ended jobs that any worker releases or purges. No row is in two of them.
drop index onejob.jobs_wake;
create index jobs_wake on onejob.jobs (coalesce(wake_task, task), wake_at)
  where lease_until is null and (finished_at is null or canvas_pending);
create index jobs_ended on onejob.jobs (wake_at) where finished_at is not null and not canvas_pending;
-- Only followers that have not ended: a purge looks for them, and ended ones may be many.
drop index onejob.jobs_follows_id;
create index jobs_follows_id on onejob.jobs (follows_id) where follows_id is not null and finished_at is null;
-- What each worker has registered, as JSON: its tasks, queues and pool.
alter table onejob.workers add column registration text not null default '{}';
