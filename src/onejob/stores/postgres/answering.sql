-- Find the job that answers an idempotency key, or else the one that holds an identity.
-- in: :identity :key :now
-- out: the job
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
)
select jobs.* from onejob.jobs
where id = coalesce(
  (select job_id from onejob.keys, moment where key = cast(:key as text) and until > now),
  (select id from onejob.jobs, moment where identity = :identity and holds and coalesce(identity_until > now, true))
)
