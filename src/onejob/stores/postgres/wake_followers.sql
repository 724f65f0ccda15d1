-- Make the followers of a job that a request has ended due, unless they run, and give its identity, if it is free, to
-- the job that is queued next. It is a separate statement of the same transaction, because its snapshot must include the
-- followers that were committed while `apply` waited for the row lock.
-- A follower whose end somebody waits for, which a webhook is not, is signaled: no queue is named.
-- in: :job_id :request_id :due_channel :now
with {clock},
ended as (
  select not exists (
    select from onejob.jobs as live where live.identity = jobs.identity and live.holds_identity
  ) as is_free
  from onejob.jobs
  where id = :job_id and current_setting('ledger.applied_request', true) = :request_id
),
updated as (
  update onejob.jobs as jobs set
    wake_at = least(case when queued_next then greatest(run_at, now) else now end, expires_at),
    follows_id = case when not (queued_next and is_free) then follows_id end,
    reason = case when queued_next and is_free then 'promoted' else reason end,
    holds_identity = queued_next and is_free,
    queued_next = queued_next and not is_free,
    entries = entries + (queued_next and is_free)::integer
  from ended, clock
  where follows_id = :job_id and finished_at is null and {waits_for_run}
  returning jobs.*, case when publisher_task is null then pg_notify(cast(:due_channel as text), '') end, {notify_workers}
)
insert into onejob.history ({history_columns})
select id, entries, now, 'promote', state, attempt, node, 'promoted when ' || cast(:job_id as text) || ' ended'
from updated, clock
where holds_identity
