-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table onejob.ledger_info (
  id text primary key
);
insert into onejob.ledger_info (id) values (gen_random_uuid()::text);
-- The jobs of one submitter are listed without reading those of the others.
create index jobs_submitter on onejob.jobs (submitter, created_at, id) where submitter <> '';
