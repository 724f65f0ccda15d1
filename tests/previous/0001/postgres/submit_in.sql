-- Write a queued job that holds its identity, in the transaction of somebody else: no other job's row is touched, so
-- that nothing waits for that transaction but equal submissions.
-- in: the columns of the submission, :delay :expires_in :wake_in (seconds), :window_over :now
-- out: the job; nothing when its id exists or another job holds its identity
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
expired as (
  update onejob.jobs as jobs set holds = false, entries = entries + 1
  from moment
  where identity = :identity and holds and identity_until <= now
  returning jobs.*
),
placed as (
  insert into onejob.jobs (
    id, task, identity, fingerprint, submission, payload, state, holds, leader, token, claim, node, attempt, retries,
    crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel, undelivered, duplicates, reason,
    requests, entries
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :payload, 'queued', true, null, 0, '', '', 0, cast(:retries as integer),
    0, cast(:lease as float8), now, now + cast(:delay as float8), now + cast(:expires_in as float8),
    least(now + cast(:wake_in as float8), now + cast(:expires_in as float8)), 0, 0, cast(:canvas as boolean), 0,
    'submitted', '', 1
  from moment
  where (select count(*) from expired) >= 0 -- which has to come first
  on conflict do nothing
  returning *
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, entries, now, 'submit', state, attempt, node, :door from placed, moment
  union all
  select id, entries, now, 'free', state, attempt, node, :window_over from expired, moment
)
select placed.* from placed
