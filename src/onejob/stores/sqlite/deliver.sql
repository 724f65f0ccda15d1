-- name: deliver
-- Take the due jobs that are offered to the workers of these queues, by priority and then by the time they are due, each for
-- one lease.
-- in: :queues (JSON array) :refused (JSON array: of these tasks no job is taken) :limit :now
-- out: the jobs, in no order
with recursive {places},
due as materialized (
  select found.id from places join jobs as found on found.rowid in (
    select rowid from jobs
    where route = places.queue and priority_rank = places.rank and {is_offered} and run_at <= :now
      and (expires_at is null or expires_at > :now) and task not in (select value from json_each(:refused))
    order by run_at
    limit :limit
  )
  order by places.rank desc, found.run_at
  limit :limit
)
update jobs set published_at = :now, wake_at = min(:now + lease, coalesce(expires_at, 9e999))
where id in (select id from due)
returning {job_columns}
-- name: next_delivery
-- in: :queues (JSON array) :refused (JSON array of tasks) :now
-- out: the "seconds" until the next job that is offered to workers of these queues is due; null without a job
with recursive {places}
select min((
  select run_at from jobs
  where route = places.queue and priority_rank = places.rank and {is_offered} and (expires_at is null or expires_at > :now)
    and task not in (select value from json_each(:refused))
  order by run_at limit 1
)) - :now as seconds
from places
