-- in: :job_id :now
-- out: the tombstone; nothing when it is too old, or when there is a job of this id again
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
)
select id, state, finished_at, purged_at from onejob.tombstones
where id = :job_id and until > (select now from clock)
  and not exists (select from onejob.jobs where id = :job_id)
