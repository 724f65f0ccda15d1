-- name: read_clock
-- out: the time
with {clock}
select now from clock
-- name: get_many
-- in: :job_ids (array)
-- out: those of the jobs that exist
select jobs.* from onejob.jobs where id = any(cast(:job_ids as text[]))
-- name: get
-- Separate from get_many, whose generic plan, made for a small table, would scan it for one job.
-- in: :job_id
-- out: the job, or nothing
select jobs.* from onejob.jobs where id = :job_id
-- name: find_existing
-- Find the job that answers an idempotency key, or else the one that holds an identity within its uniqueness window.
-- in: :identity :key
-- out: the job
with {clock}
select jobs.* from onejob.jobs
where id = coalesce(
  (select job_id from onejob.keys, clock where key = cast(:key as text) and until > now),
  (
    select id from onejob.jobs
    where identity = :identity and holds_identity and coalesce(identity_until > (select now from clock), true)
  )
)
-- name: find
-- in: the filters, :before :before_id (null for any) :limit :offset
-- out: jobs, newest first
select jobs.* from onejob.jobs {page}
-- name: find_light
-- in: as find
-- out: the same jobs with the large columns empty, which are not read
select {light_columns} from onejob.jobs {page}
-- name: count_jobs
-- in: the filters
-- out: how many jobs match, by state
select state, count(*) as count from onejob.jobs where {filters} group by state
-- name: count_newest
-- Separate from count_jobs, which needs no order.
-- in: the filters, :limit
-- out: how many of the newest matching jobs, up to the limit, are in each state
select state, count(*) as count
from (select state from onejob.jobs where {filters} order by created_at desc, id desc limit :limit) as newest
group by state
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
