-- Ring the alarms of all jobs that follow a job which this very request has ended. A statement of its own, in the same
-- transaction: it must see the followers that came while the end waited for its row.
-- in: :job_id :request_id :now
update onejob.jobs set wake_at = coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8)
where leader = :job_id and finished_at is null and current_setting('ledger.changed', true) = :request_id
