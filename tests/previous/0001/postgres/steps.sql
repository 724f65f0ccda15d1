-- in: :job_id
-- out: name and value of every memoised step
select name, value from onejob.steps where job_id = :job_id
