-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table ledger_info (
  id text primary key
);
insert into ledger_info (id) values (lower(hex(randomblob(16))));
-- The jobs of one submitter are listed without reading those of the others.
create index jobs_submitter on jobs (submitter, created_at, id) where submitter <> '';
