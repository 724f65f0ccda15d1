-- in: :queues (array) :refused (array of tasks) :now
-- out: in how many "seconds" the next job is due that is offered to such workers: null without one
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
