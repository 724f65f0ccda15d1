-- Let a job answer an idempotency key.
-- in: :key :key_for (seconds) :job_id :fingerprint :now
insert or replace into keys (key, job_id, fingerprint, until) values (:key, :job_id, :fingerprint, :now + :key_for)
