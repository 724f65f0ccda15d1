-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table onejob.ledger_info (
  id text primary key
);
insert into onejob.ledger_info (id) values (gen_random_uuid()::text);

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
