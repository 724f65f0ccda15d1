-- Keep the receipt of a submission on the job that it has met, instead of that job's oldest one when there are enough.
-- A message that came again has a place of its own, for the latest one.
-- in: the fields of the receipt, :receipt_limit :now
insert or replace into receipts
  (job_id, slot, at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved)
select
  id, iif(:submission = '', -1, (duplicates - 1) % :receipt_limit), :now, :submission, :outcome, :answer, :door, :submitter, :host,
  :fingerprint, :differs, :moved
from jobs where id = :job_id
