-- in: :job_id
-- out: the job, or nothing
select * from jobs where id = :job_id
