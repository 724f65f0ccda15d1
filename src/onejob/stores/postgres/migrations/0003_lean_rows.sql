-- The entry point of the submission that wrote the row. Until now it was the detail of the history's first entry.
alter table onejob.jobs add column source text not null default '';
-- Whether any job ever followed this one: only then does its end look for followers.
alter table onejob.jobs add column followed boolean not null default false;
update onejob.jobs as jobs set followed = true from onejob.jobs as follower
where follower.follows_id = jobs.id and follower.finished_at is null;
-- Ids in these indexes took half of their bytes; equal times are rare, and are sorted.
drop index onejob.jobs_created;
create index jobs_created on onejob.jobs (created_at);
drop index onejob.jobs_submitter;
create index jobs_submitter on onejob.jobs (submitter, created_at) where submitter <> '';
