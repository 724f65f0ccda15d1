-- Write the row of a duplicate that must come to an end under its own id, in the transaction of somebody else. Its
-- alarm rings at once: its leader may end before the transaction does, and could not wake what it cannot see.
-- in: the columns of the submission, :leader :now
-- out: the follower; nothing when its id exists
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
placed as (
  insert into onejob.jobs (
    id, task, identity, fingerprint, submission, payload, state, holds, leader, token, claim, node, attempt, retries,
    crashes, lease, created_at, run_at, wake_at, published, cancel, undelivered, duplicates, reason, requests, entries
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :payload, 'queued', false, :leader, 0, '', '', 0,
    cast(:retries as integer), 0, cast(:lease as float8), now, now, now, 0, 0, cast(:canvas as boolean), 0,
    'follows ' || cast(:leader as text), '', 1
  from moment
  on conflict do nothing
  returning *
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, entries, now, 'follow', state, attempt, node, reason from placed, moment
)
select placed.* from placed
