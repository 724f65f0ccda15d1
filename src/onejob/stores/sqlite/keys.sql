-- name: find_key
-- in: :key :now
-- out: the fingerprint of the first submission with this idempotency key, and the id of the job that answers it
select fingerprint, job_id from keys where key = :key and until > :now
-- name: keep_key
-- Store a job as the answer to an idempotency key.
-- in: :key :key_for (seconds) :job_id :fingerprint :now
insert or replace into keys (key, job_id, fingerprint, until) values (:key, :job_id, :fingerprint, :now + :key_for)
-- name: extend_key_retention
-- Retain a job at least as long as an idempotency key points to it.
-- in: :job_id :key_for (seconds) :now
-- out: the job
update jobs set key_retained_until = max(coalesce(key_retained_until, 0), :now + :key_for) where id = :job_id returning {job_columns}
