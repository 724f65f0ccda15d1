-- Keep the duplicate of a submission on the job that it has met, instead of that job's oldest one when there are enough.
-- A message that came again has a place of its own, for the latest one.
-- in: the fields of the duplicate, :duplicate_limit :now
insert or replace into duplicates
  (job_id, slot, at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled)
select
  id, iif(:submission_nonce = '', -1, (duplicate_count - 1) % :duplicate_limit), :now, :submission_nonce, :outcome, :answered_by, :source, :submitter, :host,
  :fingerprint, :arguments_differ, :rescheduled
from jobs where id = :job_id
