-- Write a queued job that holds its identity.
-- in: the columns of the submission, :delay :expires_in :wake_in (seconds), :now
-- out: the job; nothing when its id exists or another job holds its identity
insert into jobs (
  id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, state, holds_identity, queued_next, follows_id, token,
  claim, node, attempt, retries, crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel,
  canvas_pending, duplicate_count, reason, requests
)
select
  :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :priority_rank, 'queued', 1, 0, null, 0,
  '', '', 0, :retries, 0, :lease, :now, :now + :delay, :now + :expires_in,
  min(:now + iif(:delay > 0, :delay, :wake_in), coalesce(:now + :expires_in, 9e999)), 0, 0,
  :canvas, 0, 'submitted', ''
where not exists (select 1 from jobs where id = :id)
on conflict (identity) where holds_identity do nothing
returning *
