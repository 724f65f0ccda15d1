-- name: find_key
-- in: :key :now
-- out: the fingerprint of the submission that had this idempotency key first, and the id of the job that answered it
select fingerprint, job_id from keys where key = :key and until > :now
-- name: keep_key
-- Let a job answer an idempotency key.
-- in: :key :key_for (seconds) :job_id :fingerprint :now
insert or replace into keys (key, job_id, fingerprint, until) values (:key, :job_id, :fingerprint, :now + :key_for)
-- name: keep_for
-- Set until when a job answers an idempotency key.
-- in: :job_id :key_for (seconds) :now
-- out: the job
update jobs set key_retained_until = max(coalesce(key_retained_until, 0), :now + :key_for) where id = :job_id returning *
