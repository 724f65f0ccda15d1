-- in: :job_id :duplicate_limit
-- out: the duplicates of those who met the job, oldest first
select job_id, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled, at
from onejob.duplicates
cross join (
  select duplicate_count, cast(:duplicate_limit as integer) as ring from onejob.jobs where id = :job_id
) as met
where job_id = :job_id
order by slot < 0, mod(slot + 1 - duplicate_count, ring)
