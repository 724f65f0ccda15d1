-- The ledger: jobs, their memoised steps, their histories, and their duplicates.
-- Times are seconds since the epoch; payload, options, progress, result and error are JSON, stored byte for byte.

-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table ledger_info (
  id text primary key
);
insert into ledger_info (id) values (lower(hex(randomblob(16))));

create table jobs (
  id text primary key,
  task text not null,
  identity text not null,
  fingerprint text not null,
  submission_nonce text not null,
  submitter text not null,
  -- The entry point of the submission that wrote the row.
  source text not null default '',
  payload text not null,
  options text not null,
  -- Where the messages of the job are sent, resolved by its submitter (empty: not resolved).
  route text not null default '',
  priority_rank integer not null,
  state text not null default 'queued',
  holds_identity integer not null default 0,
  queued_next integer not null default 0,
  identity_until real,
  follows_id text,
  -- The task whose workers handle the job when it is due, if that is not the job's own: a webhook has that of its job.
  publisher_task text,
  -- One on each line (null: none).
  tag_lines text,
  -- The pause that a waiting job is parked on, or "limit:" and the key (null or empty: none).
  parked_on text,
  -- The keys of the job's limits, each with its weight, as JSON (null: it has no limits).
  limit_keys text,
  token integer not null default 0,
  claim text not null default '',
  node text not null default '',
  attempt integer not null default 0,
  retries integer not null,
  crashes integer not null default 0,
  lease real not null,
  lease_until real,
  created_at real not null,
  run_at real not null,
  expires_at real,
  started_at real,
  finished_at real,
  -- When a sweep has to look at the job. Every job that has not ended has one.
  wake_at real,
  published integer not null default 0,
  -- When the message of a waiting job was sent last (null: a sweep has to send it). It is sent again only when it is
  -- known to be gone.
  published_at real,
  -- Why the last attempt to send a message failed.
  publish_error text not null default '',
  cancel integer not null default 0,
  canvas_pending integer not null,
  key_retained_until real,
  duplicate_count integer not null default 0,
  progress text,
  result text,
  error text,
  reason text not null,
  -- What the attempts have cost, as JSON: exact amounts by attempt and unit (null: no cost was reported).
  costs text,
  requests text not null default ''
) strict;

-- The invariant: one live job per identity.
create unique index jobs_identity on jobs (identity) where holds_identity;
-- At most one job is queued next per identity.
create unique index jobs_queued_next on jobs (identity) where queued_next;
-- A sweep finds in three indexes the runs whose lease has expired, the jobs that the workers of one task handle, and
-- the ended jobs that any worker releases or purges. No row is in two of them.
create index jobs_lease on jobs (wake_at) where lease_until is not null;
create index jobs_wake on jobs (coalesce(publisher_task, task), wake_at)
  where lease_until is null and (finished_at is null or canvas_pending);
-- Workers take jobs from the ledger by queue, the most urgent first, where it delivers them itself: those that no broker
-- was sent. Most jobs of an app with a broker are never in it.
create index jobs_offered on jobs (route, priority_rank desc, run_at)
  where published_at is null and lease_until is null and finished_at is null and not queued_next and follows_id is null
    and substr(route, 1, 1) not in ('', '[');
create index jobs_ended on jobs (wake_at) where finished_at is not null and not canvas_pending;
-- Lists are in the order of `created_at`; equal times are rare, and are sorted.
create index jobs_created on jobs (created_at);
create index jobs_submitter on jobs (submitter, created_at, id) where submitter <> '';
-- Jobs in these states are listed, in order, and counted by an index; most jobs are never in it. Every change of a job
-- evaluates its condition, for which comparisons take less than a list.
create index jobs_state on jobs (state, created_at, id) where state = 'retrying' or state = 'failed' or state = 'canceled';
-- The followers of a job; those that have not ended are found by the index alone.
create index jobs_follows_id on jobs (follows_id, finished_at) where follows_id is not null;

-- The jobs that the end of a pause, or room on a key, makes due, in the order in which they run. Most jobs are never in it.
create index jobs_parked on jobs (parked_on, priority_rank desc, created_at, id) where parked_on <> '';

create table steps (
  job_id text not null references jobs (id) on delete cascade,
  name text not null,
  value text not null,
  primary key (job_id, name)
) strict, without rowid;

-- The end of what each attempt has logged.
create table run_logs (
  job_id text not null references jobs (id) on delete cascade,
  attempt integer not null,
  text text not null,
  primary key (job_id, attempt)
) strict, without rowid;

create table history (
  job_id text not null references jobs (id) on delete cascade,
  seq integer not null,
  at real not null,
  event text not null,
  state text not null,
  attempt integer not null,
  node text not null,
  detail text not null,
  primary key (job_id, seq)
) strict, without rowid;

-- The newest duplicates of a job, as a ring buffer of slots. Slot -1 is the latest redelivered message.
create table duplicates (
  job_id text not null references jobs (id) on delete cascade,
  slot integer not null,
  at real not null,
  submission_nonce text not null,
  outcome text not null,
  answered_by text not null,
  source text not null,
  submitter text not null,
  host text not null,
  fingerprint text not null,
  arguments_differ integer not null,
  rescheduled integer not null,
  primary key (job_id, slot)
) strict, without rowid;

-- The numbers of the duplicates of one job, by submitter and outcome, and of its redelivered messages.
create table duplicate_counts (
  job_id text not null references jobs (id) on delete cascade,
  submitter text not null,
  outcome text not null,
  count integer not null,
  primary key (job_id, submitter, outcome)
) strict, without rowid;

-- The same numbers of all deleted jobs, by task; never deleted.
create table duplicate_sums (
  task text not null,
  submitter text not null,
  outcome text not null,
  count integer not null,
  primary key (task, submitter, outcome)
) strict, without rowid;

-- What jobs have spent, and what their duplicates have saved, on each day (UTC), by task and submitter, and once more by
-- task and tag. Each job is in one sum of its submitter and in one of each of its tags. Amounts are exact decimal texts.
-- Old days are deleted.
create table cost_sums (
  day text not null,
  task text not null,
  label text not null,
  name text not null,
  unit text not null,
  spent text not null,
  saved text not null,
  primary key (day, task, label, name, unit)
) strict, without rowid;

-- How purged jobs had ended.
create table tombstones (
  id text primary key,
  state text not null,
  finished_at real not null,
  purged_at real not null,
  until real not null
) strict, without rowid;
create index tombstones_until on tombstones (until);

-- Idempotency keys.
create table keys (
  key text primary key,
  job_id text not null references jobs (id) on delete cascade,
  fingerprint text not null,
  until real not null
) strict, without rowid;
create index keys_job on keys (job_id);

-- Uses of each quota in the window that began with its first use. Later uses of any quota delete expired windows.
create table quotas (
  name text primary key,
  used integer not null,
  until real not null
) strict, without rowid;
create index quotas_until on quotas (until);

-- The events that webhooks report, each stored once for all webhooks of a job, and until when it is needed.
create table webhook_events (
  id text primary key,
  body text not null,
  until real not null
);
create index webhook_events_until on webhook_events (until);

-- The results of Celery tasks that are no jobs, and of groups: what `result_backend = "onejob://"` is given to store.
create table task_results (
  name text primary key,
  body text not null,
  until real not null
);
create index task_results_until on task_results (until);

-- What operators did, and which requests and logins were refused, each kind apart; `entry` is JSON.
create table audit_log (
  id integer primary key,
  at real not null,
  kind text not null default 'action',
  entry text not null
);
create index audit_log_kind on audit_log (kind, id);

-- The latest heartbeat of each worker, when it expires, and, as JSON, what it has registered: tasks, queues and pool.
create table workers (
  name text primary key,
  seen_at real not null,
  until real not null,
  registration text not null default '{}'
) strict, without rowid;

-- What was added to metrics in each bucket of a period, which has this many seconds and is 0 for the totals.
create table metric_buckets (
  period integer not null,
  starts_at real not null,
  name text not null,
  amount real not null,
  primary key (period, starts_at, name)
) strict, without rowid;

-- The broker of `broker_url = "onejob://"`: queues, and which of them get the messages of an exchange.
create table message_queues (
  name text primary key,
  -- For how many seconds a temporary queue exists without a consumer, and until when (null: it is none).
  expires_after real,
  until real,
  -- For how many seconds its messages wait at most.
  message_ttl real
) strict, without rowid;
create table message_bindings (
  exchange text not null,
  queue text not null,
  routing_key text not null,
  -- A regular expression of further routing keys (null: none).
  pattern text,
  primary key (exchange, queue, routing_key)
) strict, without rowid;
create index message_bindings_queue on message_bindings (queue);

-- The messages that are no jobs, a row for each queue that has one. A taken one has a consumer, which renews its deadline.
create table messages (
  id integer primary key autoincrement,
  message_id text not null,
  queue text not null,
  priority integer not null,
  body text not null,
  redelivered integer not null default 0,
  consumer text not null default '',
  taken_until real,
  expires_at real
) strict;
create unique index messages_message on messages (message_id, queue);
create index messages_ready on messages (queue, priority desc, id) where taken_until is null;
create index messages_taken on messages (taken_until) where taken_until is not null;
create index messages_expire on messages (expires_at) where expires_at is not null and taken_until is null;

-- The state of each entry of the beat schedule, as JSON: its last tick, and from when on ticks are due. A change compares
-- and sets the nonce.
create table schedules (
  name text primary key,
  nonce text not null,
  state text not null
) strict, without rowid;

-- The pauses and strikes, as JSON.
create table blocks (
  id text primary key,
  body text not null
) strict, without rowid;

-- How much room the keys of limits have: by the definition of a name, and by exceptions for a name or a key.
create table limits (
  key text not null,
  is_default integer not null,
  -- How many jobs run at once (null: the limit is a rate).
  running integer,
  -- The rate as it was written, and the seconds in which it permits a weight of 1.
  rate text not null,
  interval real,
  burst real not null,
  until real,
  primary key (key, is_default)
) strict, without rowid;

-- The slots of runs: one is taken while its job runs with this token and a valid lease. Others are deleted when somebody
-- looks at the key.
create table limit_slots (
  limit_key text not null,
  job_id text not null references jobs (id) on delete cascade,
  token integer not null,
  primary key (limit_key, job_id)
) strict, without rowid;
create index limit_slots_job on limit_slots (job_id);

-- The room of jobs that are about to run, until their claims: a slot, or the weight of the tokens. Tokens of a job that
-- does not run, or is deleted, are given back when somebody looks at the key.
create table limit_reservations (
  limit_key text not null,
  job_id text not null,
  until real not null,
  weight real not null,
  primary key (limit_key, job_id)
) strict, without rowid;
create index limit_reservations_job on limit_reservations (job_id);
create index limit_reservations_until on limit_reservations (until);

-- When the bucket of a key is full, and when the first job that waits for its tokens has enough (null: none waits).
create table limit_rates (
  key text primary key,
  full_at real not null,
  alarm real
) strict, without rowid;
create index limit_rates_alarm on limit_rates (alarm) where alarm is not null;
create index limit_rates_full_at on limit_rates (full_at) where alarm is null;
