-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table onejob.ledger_info (
  id text primary key
);
insert into onejob.ledger_info (id) values (gen_random_uuid()::text);

-- Publication: where the messages of a job are sent, resolved by its submitter (empty: not resolved), and why the last
-- attempt to send one failed.
alter table onejob.jobs add column route text not null default '';
alter table onejob.jobs add column publish_error text not null default '';
