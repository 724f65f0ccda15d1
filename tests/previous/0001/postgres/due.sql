-- Take the jobs whose alarm has rung, and put their alarm off. What another sweeper is just taking is left to it.
-- in: :limit :hold (seconds) :now
-- out: the jobs
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
ringing as (
  select id from onejob.jobs
  where wake_at <= (select now from moment)
  order by wake_at
  limit :limit
  for no key update skip locked
),
taken as (
  update onejob.jobs as jobs set wake_at = now + cast(:hold as float8)
  from moment
  where jobs.id = any(array(select id from ringing))
  returning jobs.*
)
select taken.* from taken
