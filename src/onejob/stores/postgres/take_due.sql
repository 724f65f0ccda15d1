-- Take the jobs whose alarm has rung, and put their alarm off: first runs whose lease is over, then the others. What
-- another sweeper is just taking is left to it.
-- in: :limit :hold (seconds) :now
-- out: the jobs
with {clock},
lost as (
  select id from onejob.jobs
  where wake_at <= (select now from clock) and lease_until is not null
  order by wake_at
  limit cast(:limit as bigint)
  for no key update skip locked
),
others as (
  select id from onejob.jobs
  where wake_at <= (select now from clock) and lease_until is null
  order by wake_at
  limit cast(:limit as bigint) - (select count(*) from lost)
  for no key update skip locked
),
taken as (
  update onejob.jobs as jobs set wake_at = now + cast(:hold as float8)
  from clock
  where jobs.id = any(array(select id from lost union all select id from others))
  returning jobs.*
)
select taken.* from taken
