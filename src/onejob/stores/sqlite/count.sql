-- Count a submission on the job that it has met.
-- in: :job_id
-- out: that job
update jobs set duplicate_count = duplicate_count + 1 where id = :job_id returning *
