-- Find the job that answers an idempotency key, or else the one that holds an identity.
-- in: :identity :key :now
-- out: the job
select jobs.* from jobs
where id = coalesce(
  (select job_id from keys where key = :key and until > :now),
  (select id from jobs where identity = :identity and holds_identity and coalesce(identity_until > :now, true))
)
