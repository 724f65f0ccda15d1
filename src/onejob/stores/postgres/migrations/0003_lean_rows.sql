-- The entry point of the submission that wrote the row. Until now it was the detail of the history's first entry.
alter table onejob.jobs add column source text not null default '';
-- Ids in these indexes took half of their bytes; equal times are rare, and are sorted.
drop index onejob.jobs_created;
create index jobs_created on onejob.jobs (created_at);
drop index onejob.jobs_submitter;
create index jobs_submitter on onejob.jobs (submitter, created_at) where submitter <> '';
