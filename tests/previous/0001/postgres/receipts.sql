-- in: :job_id :receipt_limit
-- out: the receipts of those who met the job, oldest first
select job_id, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved, at
from onejob.receipts
cross join (
  select duplicates, cast(:receipt_limit as integer) as ring from onejob.jobs where id = :job_id
) as met
where job_id = :job_id
order by slot < 0, mod(slot + 1 - duplicates, ring)
