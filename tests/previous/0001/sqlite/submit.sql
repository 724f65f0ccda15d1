-- Write a queued job that holds its identity.
-- in: the columns of the submission, :delay :expires_in :wake_in (seconds), :now
-- out: the job; nothing when its id exists or another job holds its identity
insert into jobs (
  id, task, identity, fingerprint, submission, submitter, payload, options, urgency, state, holds, queued_next, leader, token,
  claim, node, attempt, retries, crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel,
  undelivered, duplicates, reason, requests
)
select
  :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :urgency, 'queued', 1, 0, null, 0,
  '', '', 0, :retries, 0, :lease, :now, :now + :delay, :now + :expires_in,
  min(:now + iif(:delay > 0, :delay, :wake_in), coalesce(:now + :expires_in, 9e999)), 0, 0,
  :canvas, 0, 'submitted', ''
where not exists (select 1 from jobs where id = :id)
on conflict (identity) where holds do nothing
returning *
