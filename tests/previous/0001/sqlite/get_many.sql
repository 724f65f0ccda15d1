-- in: :job_ids (JSON array)
-- out: those of the jobs that are there
select * from jobs where id in (select value from json_each(:job_ids))
