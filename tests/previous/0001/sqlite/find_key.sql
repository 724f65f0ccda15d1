-- in: :key :now
-- out: the fingerprint of the submission that had this idempotency key first, and the id of the job that answered it
select fingerprint, job_id from keys where key = :key and until > :now
