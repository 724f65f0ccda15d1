-- Note until when a job answers an idempotency key.
-- in: :job_id :key_for (seconds) :now
-- out: the job
update jobs set kept_until = max(coalesce(kept_until, 0), :now + :key_for) where id = :job_id returning *
