-- Find the job that answers an idempotency key, or else the one that holds an identity.
-- in: :identity :key :now
-- out: the job
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
)
select jobs.* from onejob.jobs
where id = coalesce(
  (select job_id from onejob.keys, clock where key = cast(:key as text) and until > now),
  (select id from onejob.jobs, clock where identity = :identity and holds_identity and coalesce(identity_until > now, true))
)
