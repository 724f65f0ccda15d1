-- name: read_clock
-- out: the time
with {clock}
select now from clock
-- name: get_many
-- in: :job_ids (array)
-- out: those of the jobs that exist
select jobs.* from onejob.jobs where id = any(cast(:job_ids as text[]))
-- name: get_awaited
-- Jobs whose ends are signaled from now on, in a commit that nobody has to wait for. A row that stays locked is an error.
-- in: :job_ids (array)
-- out: those of the jobs that exist, except for those that a concurrent transaction has changed
with unmarked as (
  select id from onejob.jobs
  where id = any(cast(:job_ids as text[])) and finished_at is null and not awaited
    and (select set_config('lock_timeout', '100ms', true) || set_config('synchronous_commit', 'off', true)) <> ''
  order by id
  for no key update
),
marked as (
  update onejob.jobs as jobs set awaited = true from unmarked where jobs.id = unmarked.id
  returning jobs.*
)
select marked.* from marked
union all
select jobs.* from onejob.jobs as jobs
where id = any(cast(:job_ids as text[])) and (finished_at is not null or awaited)
-- name: get
-- Separate from get_many, whose generic plan, made for a small table, would scan it for one job.
-- in: :job_id
-- out: the job, or nothing
select jobs.* from onejob.jobs where id = :job_id
-- name: find_existing
-- Find the job that answers an idempotency key, or else the job that holds an identity within its uniqueness window.
-- in: :identity :key
-- out: the job
with {clock}
select jobs.* from onejob.jobs
where id = coalesce(
  (select job_id from onejob.keys, clock where key = cast(:key as text) and until > now),
  (
    select id from onejob.jobs
    where identity = :identity and holds_identity and coalesce({held_until} > (select now from clock), true)
  )
)
-- name: find
-- variants: of_submitter of_state of_runs
-- in: the filters, the time range, :before :before_id (null for any) :limit :offset
-- out: jobs, newest first
/* unprepared */ select jobs.* from {narrowed} where {page}
-- name: find_light
-- variants: of_submitter of_state of_runs
-- in: as find
-- out: the same jobs with the large columns empty, which are not read
/* unprepared */ select {light_columns} from {narrowed} where {page}
-- name: count_jobs
-- variants: of_submitter of_state of_runs
-- in: the filters, the time range
-- out: how many jobs match, by state
/* unprepared */ select state, count(*) as count from {narrowed} where {filters} and {time_range} group by state
-- name: count_newest
-- variants: of_submitter of_state of_runs
-- Separate from count_jobs, which needs no order.
-- in: the filters, the time range, :limit
-- out: how many of the newest matching jobs, up to the limit, are in each state
/* unprepared */ select state, count(*) as count
from (
  select state from {narrowed} where {filters} and {time_range}
  order by created_at desc, id desc
  limit :limit
) as newest
group by state
-- name: count_states
-- Count jobs by state in indexes: a job whose canvas is to be notified is in the index of waiting jobs. Each order is
-- that of an index, so that no estimate makes the planner read the table instead.
-- in: :limit
-- out: the number of jobs in each state, those in the large states up to the limit
with listed as (
  select
    (select count(*) from onejob.jobs where state = 'retrying') as retrying,
    (select count(*) from onejob.jobs where state = 'failed') as failed,
    (select count(*) from onejob.jobs where state = 'canceled') as canceled
)
select
  retrying, failed, canceled,
  (
    select count(*) from (
      select from onejob.jobs where lease_until is not null order by wake_at limit (select cast(:limit as bigint))
    ) as runs
  ) as running,
  (
    select count(*) from (
      select from onejob.jobs where {is_waiting} order by coalesce(publisher_task, task), wake_at
      limit (select cast(:limit as bigint) + retrying from listed)
    ) as waiting
  ) - retrying as queued,
  (
    select count(*) from (
      select from onejob.jobs where finished_at is not null and not canvas_pending order by wake_at
      limit (select cast(:limit as bigint) + failed + canceled from listed)
    ) as ended
  ) - failed - canceled as completed
from listed
-- name: edge
-- variants: of_submitter of_state of_runs
-- The jobs of the time of the position are counted apart, because the index of times has no ids.
-- in: the time range, :before :before_id (null for any) :skip; the submitter or the state of the variant
-- out: created_at of the job that is :skip places after the position, or null
/* unprepared */ with equal as (
  select count(*) as number from {narrowed}
  where created_at = cast(:before as float8) and id < cast(:before_id as text) and {time_range}
)
select case
  when cast(:skip as bigint) < number then cast(:before as float8)
  else (
    select created_at from {narrowed}
    where {time_range} and created_at < coalesce(cast(:before as float8), 'infinity')
    order by created_at desc
    limit 1 offset (select cast(:skip as bigint) - number)
  )
end as created_at
from equal
-- name: backlog
-- in: :tasks (array) :limit (waiting jobs of each task) :submitter (null for any) :now
-- out: task, route, state, count, due and oldest_run_at of the jobs that wait for a run, and not for another job or the end of a pause, and of
--      those that run
with {clock},
found as (
  select waiting.task, route, state, run_at, submitter, run_at <= now as is_due
  from unnest((select cast(:tasks as text[]))) as known (task)
  cross join lateral (
    select jobs.task, route, state, run_at, follows_id, finished_at, submitter, parked_on from onejob.jobs
    where coalesce(publisher_task, jobs.task) = known.task and {is_waiting}
    order by wake_at
    limit (select cast(:limit as bigint))
  ) as waiting
  cross join clock
  where follows_id is null and finished_at is null and coalesce(parked_on, '') = ''
  union all
  select task, route, state, run_at, submitter, false from onejob.jobs
  where lease_until is not null and coalesce(publisher_task, task) = any(cast(:tasks as text[]))
)
select task, route, state, count(*) as count, count(*) filter (where is_due) as due, min(run_at) as oldest_run_at
from found
where cast(:submitter as text) is null or submitter = cast(:submitter as text)
group by task, route, state
-- name: followers
-- in: :job_id :limit
-- out: the jobs that follow it, oldest first
select jobs.* from onejob.jobs where follows_id = :job_id order by created_at, id limit :limit
-- name: history
-- in: :job_id
-- out: the job, and the stored "entries" in the order of their writing; nothing when the job does not exist
select jobs.*, (
  select json_agg(json_build_array(at, event, history.state, history.attempt, history.node, detail) order by seq)
  from onejob.history where job_id = jobs.id
) as entries
from onejob.jobs where id = :job_id
-- name: steps
-- in: :job_id
-- out: name and value of every memoised step
select name, value from onejob.steps where job_id = :job_id
-- name: tombstone
-- in: :job_id
-- out: the tombstone; nothing when it has expired, or when a new job has this id
with {clock}
select id, state, finished_at, purged_at from onejob.tombstones
where id = :job_id and until > (select now from clock)
  and not exists (select from onejob.jobs where id = :job_id)
-- name: find_ledger_info
-- out: the name of the database, and whether there is a ledger
select current_database()::text as database, to_regclass('onejob.ledger_info') is not null as exists
-- name: get_ledger_info
-- out: the id of the ledger, and the name of the database
select id, current_database()::text as database from onejob.ledger_info
