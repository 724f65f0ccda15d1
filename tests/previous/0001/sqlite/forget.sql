-- Forget the memoised steps of a job.
-- in: :job_id
delete from steps where job_id = :job_id
