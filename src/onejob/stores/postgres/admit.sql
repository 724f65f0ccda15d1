-- Write a queued job that holds its identity, if nothing is in its way: what most submissions come to, at a third of the
-- cost of submit, which is asked when this writes nothing.
-- in: the fields of the submission, :wake_in (seconds) :now
-- out: the job; nothing when its id exists or another job holds its identity
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
placed as (
  insert into onejob.jobs (
    id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, retries, lease, canvas_pending, holds_identity,
    created_at, run_at, expires_at, wake_at, reason, outcome
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:priority_rank as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), true,
    now, now + cast(:delay as float8), now + cast(:expires_in as float8),
    least(
      now + case when cast(:delay as float8) > 0 then cast(:delay as float8) else cast(:wake_in as float8) end,
      now + cast(:expires_in as float8)
    ),
    'submitted', 'admitted'
  from clock
  on conflict do nothing
  returning *
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, entries, now, 'submit', state, attempt, node, :source from placed, clock
)
select placed.* from placed
