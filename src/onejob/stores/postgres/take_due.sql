-- Take the jobs whose wake_at is due, and postpone it: first runs whose lease has expired, then the others. Rows that
-- another sweeper has locked are skipped. The planner does not see a value in a subquery, so it does not plan anew for the
-- values of each execution, which in a large ledger would take as long as the rest.
-- in: :tasks (array: those whose waiting jobs are taken) :expired_runs (false: not these) :limit :hold (seconds) :now
-- out: the jobs
with {unsynchronized_clock},
expired_runs as (
  select id from onejob.jobs
  where (select cast(:expired_runs as boolean)) and wake_at <= (select now from clock) and lease_until is not null
  order by wake_at
  limit (select cast(:limit as bigint))
  for no key update skip locked
),
waiting as (
  select due.id, due.wake_at
  from unnest((select cast(:tasks as text[]))) as known (task)
  cross join lateral (
    select id, wake_at from onejob.jobs
    where coalesce(publisher_task, task) = known.task and wake_at <= (select now from clock)
      and lease_until is null and (finished_at is null or canvas_pending)
    order by wake_at
    limit (select cast(:limit as bigint))
    for no key update skip locked
  ) as due
),
ended as (
  select id, wake_at from onejob.jobs
  where wake_at <= (select now from clock) and finished_at is not null and not canvas_pending
  order by wake_at
  limit (select cast(:limit as bigint))
  for no key update skip locked
),
others as (
  select id from (select * from waiting union all select * from ended) as due
  order by wake_at
  limit (select cast(:limit as bigint)) - (select count(*) from expired_runs)
),
taken as (
  update onejob.jobs as jobs set wake_at = now + cast(:hold as float8)
  from clock
  where jobs.id = any(array(select id from expired_runs union all select id from others))
  returning jobs.*
)
select taken.* from taken
