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
-- Find the job that answers an idempotency key, or else the one that holds an identity within its uniqueness window.
-- in: :identity :key :now
-- out: the job
select {job_columns} from jobs
where id = coalesce(
  (select job_id from keys where key = :key and until > :now),
  (
    select id from jobs
    where identity = :identity and holds_identity and coalesce(identity_until > :now, true)
  )
)
-- name: find
-- in: the filters, :before :before_id (null for any) :limit :offset
-- out: jobs, newest first
select {job_columns} from jobs where {page}
-- name: find_of_submitter
-- in: as find
-- out: as find; SQLite uses the submitter's index only for a condition that holds for every value
select {job_columns} from jobs where {of_submitter} and {page}
-- name: find_light
-- in: as find
-- out: the same jobs with the large columns empty, which are not read
select {light_columns} from jobs where {page}
-- name: find_light_of_submitter
-- in: as find
-- out: as find_light
select {light_columns} from jobs where {of_submitter} and {page}
-- name: count_jobs
-- in: the filters
-- out: how many jobs match, by state
select state, count(*) as count from jobs where {filters} group by state
-- name: count_jobs_of_submitter
-- in: the filters
-- out: as count_jobs
select state, count(*) as count from jobs where {of_submitter} and {filters} group by state
-- name: count_newest
-- Separate from count_jobs, which needs no order.
-- in: the filters, :limit
-- out: how many of the newest matching jobs, up to the limit, are in each state
select state, count(*) as count
from (select state from jobs where {filters} order by created_at desc, id desc limit :limit) as newest
group by state
-- name: count_newest_of_submitter
-- in: as count_newest
-- out: as count_newest
select state, count(*) as count
from (
  select state from jobs where {of_submitter} and {filters} order by created_at desc, id desc limit :limit
) as newest
group by state
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
