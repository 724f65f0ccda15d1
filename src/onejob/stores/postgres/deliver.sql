-- Take the due jobs that are offered to the workers of these queues, by priority and then by the time they are due, each for
-- one lease. Jobs that another worker is taking are skipped: more are looked at than are taken, so that workers which
-- look at the same time find some each.
-- in: :queues (array) :refused (array: of these tasks no job is taken) :limit :now
-- out: the jobs, in no order
with recursive {unsynchronized_clock},
{places},
due as (
  select found.id from places cross join lateral (
    select jobs.id, jobs.run_at from onejob.jobs as jobs
    where jobs.route = places.queue and jobs.priority_rank = places.rank and {is_offered}
      and jobs.run_at <= (select now from clock) and jobs.task <> all(cast(:refused as text[]))
      and (jobs.expires_at is null or jobs.expires_at > (select now from clock))
    order by jobs.run_at
    limit (select 4 * cast(:limit as bigint))
  ) as found
  order by places.rank desc, found.run_at
  limit (select 4 * cast(:limit as bigint))
),
locked as (
  select jobs.id from onejob.jobs as jobs
  where jobs.id = any(array(select id from due)) and {is_offered}
    and (jobs.expires_at is null or jobs.expires_at > (select now from clock))
  order by jobs.priority_rank desc, jobs.run_at
  limit (select cast(:limit as bigint))
  for no key update skip locked
),
taken as (
  update onejob.jobs as jobs set published_at = now, wake_at = least(now + jobs.lease, jobs.expires_at)
  from clock
  where jobs.id = any(array(select id from locked))
  returning jobs.*
)
select taken.* from taken
