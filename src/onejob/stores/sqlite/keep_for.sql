-- Note until when a job answers an idempotency key.
-- in: :job_id :key_for (seconds) :now
-- out: the job
update jobs set key_retained_until = max(coalesce(key_retained_until, 0), :now + :key_for) where id = :job_id returning *
