-- in: :job_id
-- out: the duplicates of those who met the job, oldest first
select * from duplicates where job_id = :job_id
order by slot < 0, (slot + 1 - (select duplicate_count from jobs where id = :job_id)) % :duplicate_limit
