-- name: notify_workers
-- Wake the workers of a job's queue, with the commit, unless they look for themselves before the job is due.
-- in: a job that was just written, :due_channel
case
    when {is_offered} and jobs.run_at
      <= coalesce(cast(:now as float8), extract(epoch from clock_timestamp())::float8) + {look_interval}
      then pg_notify(cast(:due_channel as text), jobs.route || E'\njob')
  end
-- name: notify_consumers
-- Wake the consumers of a queue that has got messages, with the commit.
-- in: queue, :due_channel
pg_notify(cast(:due_channel as text), queue || E'\nmessage')
-- name: places
-- The ranks of the jobs that are offered to the workers of queues, found one by one in the index.
-- in: :queues (array)
places as (
  select given.queue, (
    select priority_rank from onejob.jobs as jobs
    where jobs.route = given.queue and {is_offered} order by priority_rank desc limit 1
  ) as rank
  from unnest((select cast(:queues as text[]))) as given (queue)
  union all
  select places.queue, (
    select priority_rank from onejob.jobs as jobs
    where jobs.route = places.queue and {is_offered} and priority_rank < places.rank order by priority_rank desc limit 1
  )
  from places where places.rank is not null
)
-- name: ready_messages
-- The first copies of messages in some queues that nobody has taken, locked. Rows that another consumer has locked are skipped.
-- in: :queues (array) :limit
ready as (
  select due.id
  from unnest((select cast(:queues as text[]))) as known (queue)
  cross join lateral (
    select id, priority from onejob.messages
    where messages.queue = known.queue and taken_until is null
      and (expires_at is null or expires_at > (select now from clock))
    order by priority desc, id
    limit (select cast(:limit as bigint))
    for update skip locked
  ) as due
  order by priority desc, id
  limit (select cast(:limit as bigint))
)
