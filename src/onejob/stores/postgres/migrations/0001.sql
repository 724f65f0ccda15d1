-- The ledger: jobs, their memoised steps, their histories, and their duplicates.
-- Times are seconds since the epoch; payload, options, progress, result and error are JSON, stored byte for byte.

-- The id of the ledger, by which a submission in a user's transaction detects another database with a ledger of its own.
create table onejob.ledger_info (
  id text primary key
);
insert into onejob.ledger_info (id) values (gen_random_uuid()::text);

create table onejob.jobs (
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
  holds_identity boolean not null default false,
  queued_next boolean not null default false,
  identity_until double precision,
  follows_id text,
  -- The task whose workers handle the job when it is due, if that is not the job's own: a webhook has that of its job.
  publisher_task text,
  -- One on each line (null: none).
  tag_lines text,
  -- The pause that a waiting job is parked on, or "limit:" and the key (null or empty: none).
  parked_on text,
  -- The keys of the job's limits, each with its weight, as JSON (null: it has no limits).
  limit_keys text,
  token bigint not null default 0,
  claim text not null default '',
  node text not null default '',
  attempt integer not null default 0,
  retries integer not null,
  crashes integer not null default 0,
  lease double precision not null,
  lease_until double precision,
  created_at double precision not null,
  run_at double precision not null,
  expires_at double precision,
  started_at double precision,
  finished_at double precision,
  -- When a sweep has to look at the job. Every job that has not ended has one.
  wake_at double precision,
  published integer not null default 0,
  -- When the message of a waiting job was sent last (null: a sweep has to send it). It is sent again only when it is
  -- known to be gone.
  published_at double precision,
  -- Why the last attempt to send a message failed.
  publish_error text not null default '',
  cancel integer not null default 0,
  canvas_pending boolean not null,
  key_retained_until double precision,
  duplicate_count integer not null default 0,
  -- The nonces of the last eight duplicates. A submission that waited for the row finds its own repetition here.
  duplicate_nonces text not null default '',
  progress text,
  result text,
  error text,
  reason text not null,
  -- What the attempts have cost, as JSON: exact amounts by attempt and unit (null: no cost was reported).
  costs text,
  requests text not null default '',
  -- How many history entries the job has had; the outcome of the last submission that wrote or updated the row, and
  -- whether it rescheduled the job: RETURNING has access to the new row only.
  entries integer not null default 1,
  outcome text not null default '',
  rescheduled boolean not null default false,
  -- Whether anybody waits for the end, which is signaled then: a notification serializes the commits of all that send one.
  awaited boolean not null default false
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- The invariant: one live job per identity.
create unique index jobs_identity on onejob.jobs (identity) where holds_identity;
-- At most one job is queued next per identity.
create unique index jobs_queued_next on onejob.jobs (identity) where queued_next;
-- A sweep finds in three indexes the runs whose lease has expired, the jobs that the workers of one task handle, and
-- the ended jobs that any worker releases or purges. No row is in two of them.
create index jobs_lease on onejob.jobs (wake_at) where lease_until is not null;
create index jobs_wake on onejob.jobs (coalesce(publisher_task, task), wake_at)
  where lease_until is null and (finished_at is null or canvas_pending);
-- Workers take jobs from the ledger by queue, the most urgent first, where it delivers them itself: those that no broker
-- was sent. Most jobs of an app with a broker are never in it.
create index jobs_offered on onejob.jobs (route, priority_rank desc, run_at)
  where published_at is null and lease_until is null and finished_at is null and not queued_next and follows_id is null
    and left(route, 1) not in ('', '[');
create index jobs_ended on onejob.jobs (wake_at) where finished_at is not null and not canvas_pending;
-- Lists are in the order of `created_at`; equal times are rare, and are sorted.
create index jobs_created on onejob.jobs (created_at);
create index jobs_submitter on onejob.jobs (submitter, created_at) where submitter <> '';
-- Jobs in these states are listed, in order, and counted by an index; most jobs are never in it, and cost nothing.
create index jobs_state on onejob.jobs (state, created_at, id) where state in ('retrying', 'failed', 'canceled');
-- The followers of a job; those that have not ended are found by the index alone.
create index jobs_follows_id on onejob.jobs (follows_id, finished_at) where follows_id is not null;

-- The jobs that the end of a pause, or room on a key, makes due, in the order in which they run. Most jobs are never in it.
create index jobs_parked on onejob.jobs (parked_on, priority_rank desc, created_at, id) where parked_on <> '';

create table onejob.steps (
  job_id text not null references onejob.jobs (id) on delete cascade,
  name text not null,
  value text not null,
  primary key (job_id, name)
);

-- The end of what each attempt has logged.
create table onejob.run_logs (
  job_id text not null references onejob.jobs (id) on delete cascade,
  attempt integer not null,
  text text not null,
  primary key (job_id, attempt)
);

create table onejob.history (
  job_id text not null references onejob.jobs (id) on delete cascade,
  seq integer not null,
  at double precision not null,
  event text not null,
  state text not null,
  attempt integer not null,
  node text not null,
  detail text not null,
  primary key (job_id, seq)
);

-- The newest duplicates of a job, as a ring buffer of slots. Slot -1 is the latest redelivered message.
create table onejob.duplicates (
  job_id text not null references onejob.jobs (id) on delete cascade,
  slot integer not null,
  at double precision not null,
  submission_nonce text not null,
  outcome text not null,
  answered_by text not null,
  source text not null,
  submitter text not null,
  host text not null,
  fingerprint text not null,
  arguments_differ boolean not null,
  rescheduled boolean not null,
  primary key (job_id, slot)
);

-- The numbers of the duplicates of one job, by submitter and outcome, and of its redelivered messages.
create table onejob.duplicate_counts (
  job_id text not null references onejob.jobs (id) on delete cascade,
  submitter text not null,
  outcome text not null,
  count bigint not null,
  primary key (job_id, submitter, outcome)
) with (fillfactor = 80);

-- The same numbers of all deleted jobs, by task; never deleted.
create table onejob.duplicate_sums (
  task text not null,
  submitter text not null,
  outcome text not null,
  count bigint not null,
  primary key (task, submitter, outcome)
);

-- What jobs have spent, and what their duplicates have saved, on each day (UTC), by task and submitter, and once more by
-- task and tag. Each job is in one sum of its submitter and in one of each of its tags. Old days are deleted.
create table onejob.cost_sums (
  day text not null,
  task text not null,
  label text not null,
  name text not null,
  unit text not null,
  spent numeric not null,
  saved numeric not null,
  primary key (day, task, label, name, unit)
) with (fillfactor = 80);

-- How purged jobs had ended.
create table onejob.tombstones (
  id text primary key,
  state text not null,
  finished_at double precision not null,
  purged_at double precision not null,
  until double precision not null
);
create index tombstones_until on onejob.tombstones (until);

-- Idempotency keys. One that an open transaction has reserved has no job yet.
create table onejob.keys (
  key text primary key,
  job_id text references onejob.jobs (id) on delete cascade,
  fingerprint text not null,
  until double precision not null
);
create index keys_job on onejob.keys (job_id);

-- Uses of each quota in the window that began with its first use. Later uses of any quota delete expired windows.
create table onejob.quotas (
  name text primary key,
  used integer not null,
  until double precision not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index quotas_until on onejob.quotas (until);

-- The events that webhooks report, each stored once for all webhooks of a job, and until when it is needed.
create table onejob.webhook_events (
  id text primary key,
  body text not null,
  until double precision not null
);
create index webhook_events_until on onejob.webhook_events (until);

-- The results of Celery tasks that are no jobs, and of groups: what `result_backend = "onejob://"` is given to store.
create table onejob.task_results (
  name text primary key,
  body text not null,
  until double precision not null
);
create index task_results_until on onejob.task_results (until);

-- What operators did, and which requests and logins were refused, each kind apart; `entry` is JSON.
create table onejob.audit_log (
  id bigint generated always as identity primary key,
  at double precision not null,
  kind text not null default 'action',
  entry text not null
);
create index audit_log_kind on onejob.audit_log (kind, id);

-- The latest heartbeat of each worker, when it expires, and, as JSON, what it has registered: tasks, queues and pool.
create table onejob.workers (
  name text primary key,
  seen_at double precision not null,
  until double precision not null,
  registration text not null default '{}'
);

-- What was added to metrics in each bucket of a period, which has this many seconds and is 0 for the totals.
create table onejob.metric_buckets (
  period integer not null,
  starts_at double precision not null,
  name text not null,
  amount double precision not null,
  primary key (period, starts_at, name)
) with (fillfactor = 50);

-- The broker of `broker_url = "onejob://"`: queues, and which of them get the messages of an exchange.
create table onejob.message_queues (
  name text primary key,
  -- For how many seconds a temporary queue exists without a consumer, and until when (null: it is none).
  expires_after double precision,
  until double precision,
  -- For how many seconds its messages wait at most.
  message_ttl double precision
);
create table onejob.message_bindings (
  exchange text not null,
  queue text not null,
  routing_key text not null,
  -- A regular expression of further routing keys (null: none).
  pattern text,
  primary key (exchange, queue, routing_key)
);
create index message_bindings_queue on onejob.message_bindings (queue);

-- The messages that are no jobs, a row for each queue that has one. A taken one has a consumer, which renews its deadline.
create table onejob.messages (
  id bigint generated always as identity primary key,
  message_id text not null,
  queue text not null,
  priority integer not null,
  body text not null,
  redelivered boolean not null default false,
  consumer text not null default '',
  taken_until double precision,
  expires_at double precision
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create unique index messages_message on onejob.messages (message_id, queue);
create index messages_ready on onejob.messages (queue, priority desc, id) where taken_until is null;
create index messages_taken on onejob.messages (taken_until) where taken_until is not null;
create index messages_expire on onejob.messages (expires_at) where expires_at is not null and taken_until is null;

-- The state of each entry of the beat schedule, as JSON: its last tick, and from when on ticks are due. A change compares
-- and sets the nonce.
create table onejob.schedules (
  name text primary key,
  nonce text not null,
  state text not null
) with (fillfactor = 50);

-- The pauses and strikes, as JSON.
create table onejob.blocks (
  id text primary key,
  body text not null
);

-- How much room the keys of limits have: by the definition of a name, and by exceptions for a name or a key.
create table onejob.limits (
  key text not null,
  is_default boolean not null,
  -- How many jobs run at once (null: the limit is a rate).
  running integer,
  -- The rate as it was written, and the seconds in which it permits a weight of 1.
  rate text not null,
  interval double precision,
  burst double precision not null,
  until double precision,
  primary key (key, is_default)
);

-- The slots of runs: one is taken while its job runs with this token and a valid lease. Others are deleted when somebody
-- looks at the key.
create table onejob.limit_slots (
  limit_key text not null,
  job_id text not null references onejob.jobs (id) on delete cascade,
  token bigint not null,
  primary key (limit_key, job_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index limit_slots_job on onejob.limit_slots (job_id);

-- The room of jobs that are about to run, until their claims: a slot, or the weight of the tokens. Tokens of a job that
-- does not run, or is deleted, are given back when somebody looks at the key.
create table onejob.limit_reservations (
  limit_key text not null,
  job_id text not null,
  until double precision not null,
  weight double precision not null,
  primary key (limit_key, job_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index limit_reservations_job on onejob.limit_reservations (job_id);
create index limit_reservations_until on onejob.limit_reservations (until);

-- When the bucket of a key is full, and when the first job that waits for its tokens has enough (null: none waits).
create table onejob.limit_rates (
  key text primary key,
  full_at double precision not null,
  alarm double precision
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index limit_rates_alarm on onejob.limit_rates (alarm) where alarm is not null;
create index limit_rates_full_at on onejob.limit_rates (full_at) where alarm is null;
