-- in: :queues (array) :refused (array of tasks) :now
-- out: the "seconds" until the next job that is offered to workers of these queues is due; null without a job
with recursive {clock},
{places}
select min(found.run_at) - (select now from clock) as seconds
from places cross join lateral (
  select jobs.run_at from onejob.jobs as jobs
  where jobs.route = places.queue and jobs.priority_rank = places.rank and {is_offered}
    and (jobs.expires_at is null or jobs.expires_at > (select now from clock))
    and jobs.task <> all(cast(:refused as text[]))
  order by jobs.run_at
  limit 1
) as found
