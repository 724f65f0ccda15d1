-- in: :job_id
-- out: the receipts of those who met the job, oldest first
select * from receipts where job_id = :job_id
order by slot < 0, (slot + 1 - (select duplicates from jobs where id = :job_id)) % :receipt_limit
