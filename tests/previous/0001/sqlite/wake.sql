-- Ring the alarms of all jobs that follow an ended one.
-- in: :job_id :now
update jobs set wake_at = :now
where leader = :job_id and finished_at is null
