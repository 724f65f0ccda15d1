-- Ring the alarms of all jobs that follow a job which this very request has ended, and give its identity, if it is
-- free, to the one queued next. A statement of its own, in the same transaction: it must see those that came while the
-- end waited for its row.
-- in: :job_id :request_id :now
with {clock},
ended as (
  select not exists (select from onejob.jobs as live where live.identity = jobs.identity and live.holds_identity) as free
  from onejob.jobs
  where id = :job_id and current_setting('ledger.changed', true) = :request_id
),
woken as (
  update onejob.jobs as jobs set
    wake_at = least(case when queued_next then greatest(run_at, now) else now end, expires_at),
    follows_id = case when not (queued_next and free) then follows_id end,
    reason = case when queued_next and free then 'it is its turn' else reason end,
    holds_identity = queued_next and free,
    queued_next = queued_next and not free,
    entries = entries + (queued_next and free)::integer
  from ended, clock
  where follows_id = :job_id and finished_at is null
  returning jobs.*
)
insert into onejob.history ({history_columns})
select id, entries, now, 'promote', state, attempt, node, 'its turn came when ' || cast(:job_id as text) || ' ended'
from woken, clock
where holds_identity
