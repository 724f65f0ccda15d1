-- in: :job_ids (array)
-- out: those of the jobs that are there
select jobs.* from onejob.jobs where id = any(cast(:job_ids as text[]))
