-- name: get_many
-- in: :job_ids (JSON array)
-- out: those of the jobs that exist
select {job_columns} from jobs where id in (select value from json_each(:job_ids))
-- name: get
-- in: :job_id
-- out: the job, or nothing
select {job_columns} from jobs where id = :job_id
-- name: is_repeated
-- in: :job_id :request_id
-- out: whether the request is one of the latest that were applied to the job; nothing without the job
select instr(' ' || requests, ' ' || :request_id || ' ') > 0 as repeated from jobs where id = :job_id
-- name: find_existing
-- Find the job that answers an idempotency key, or else the job that holds an identity within its uniqueness window.
-- in: :identity :key :now
-- out: the job
select {job_columns} from jobs
where id = coalesce(
  (select job_id from keys where key = :key and until > :now),
  (
    select id from jobs
    where identity = :identity and holds_identity and coalesce({held_until} > :now, true)
  )
)
-- name: find
-- variants: of_submitter of_state of_runs
-- in: the filters, the position, :limit :offset
-- out: jobs, newest first
select {job_columns} from jobs where {narrowed} and {page}
-- name: find_light
-- variants: of_submitter of_state of_runs
-- in: as find
-- out: the same jobs with the large columns empty, which are not read
select {light_columns} from jobs where {narrowed} and {page}
-- name: count_jobs
-- variants: of_submitter of_state of_runs
-- in: the filters, the time range
-- out: how many jobs match, by state
select state, count(*) as count from jobs where {narrowed} and {filters} and {time_range} group by state
-- name: count_newest
-- variants: of_submitter of_state of_runs
-- Separate from count_jobs, which needs no order.
-- in: the filters, the time range, :limit
-- out: how many of the newest matching jobs, up to the limit, are in each state
select state, count(*) as count
from (
  select state from jobs where {narrowed} and {filters} and {time_range} order by created_at desc, id desc limit :limit
) as newest
group by state
-- name: count_states
-- Count jobs by state in indexes: a job whose canvas is to be notified is in the index of waiting jobs.
-- in: :limit
-- out: the number of jobs in each state, those in the large states up to the limit
with listed as (
  select
    (select count(*) from jobs where state = 'retrying') as retrying,
    (select count(*) from jobs where state = 'failed') as failed,
    (select count(*) from jobs where state = 'canceled') as canceled
)
select
  retrying, failed, canceled,
  (select count(*) from (select 1 from jobs where lease_until is not null limit :limit)) as running,
  (
    select count(*) from (select 1 from jobs where {is_waiting} limit :limit + (select retrying from listed))
  ) - retrying as queued,
  (
    select count(*) from (
      select 1 from jobs where finished_at is not null and not canvas_pending
      limit :limit + (select failed + canceled from listed)
    )
  ) - failed - canceled as completed
from listed
-- name: edge
-- variants: of_submitter of_state of_runs
-- in: the position, :skip; the submitter or the state of the variant
-- out: created_at of the job that is :skip places after the position; the index has all but the ids of equal times
select created_at from jobs where {narrowed} and {position} order by created_at desc limit 1 offset :skip
-- name: backlog
-- in: :tasks (JSON array) :limit (waiting jobs of each task) :submitter (null for any) :now
-- out: task, route, state, count, due and oldest_run_at of the jobs that wait for a run, and not for another job or the end of a pause, and of
--      those that run
with found as materialized (
  select jobs.rowid as number from json_each(:tasks) as known join jobs on jobs.rowid in (
    select rowid from jobs where coalesce(publisher_task, task) = known.value and {is_waiting} order by wake_at limit :limit
  )
  where follows_id is null and finished_at is null and coalesce(parked_on, '') = ''
  union all
  select rowid from jobs where lease_until is not null
)
select
  task, route, state, count(*) as count, sum(lease_until is null and run_at <= :now) as due, min(run_at) as oldest_run_at
from found join jobs on jobs.rowid = number
where coalesce(publisher_task, task) in (select value from json_each(:tasks))
  and (:submitter is null or submitter = :submitter)
group by task, route, state
-- name: followers
-- in: :job_id :limit
-- out: the jobs that follow it, oldest first
select {job_columns} from jobs where follows_id = :job_id order by created_at, id limit :limit
-- name: history
-- in: :job_id
-- out: the entries, oldest first
select at, event, state, attempt, node, detail from history where job_id = :job_id order by seq
-- name: steps
-- in: :job_id
-- out: name and value of every memoised step
select name, value from steps where job_id = :job_id
-- name: tombstone
-- in: :job_id :now
-- out: the tombstone; nothing when it has expired, or when a new job has this id
select * from tombstones
where id = :job_id and until > :now and not exists (select 1 from jobs where jobs.id = :job_id)
