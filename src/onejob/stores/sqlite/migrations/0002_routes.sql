-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table ledger_info (
  id text primary key
);
insert into ledger_info (id) values (lower(hex(randomblob(16))));

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
