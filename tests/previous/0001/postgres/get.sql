-- in: :job_id
-- out: the job, or nothing
select jobs.* from onejob.jobs where id = :job_id
