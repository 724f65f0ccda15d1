-- Write the job that runs after the one which holds the identity: it sleeps until that one gives it up.
-- in: the columns of the submission, :follows_id (the holder), :delay :expires_in (seconds), :now
-- out: the job; nothing when another one waits for the identity already
insert into jobs (
  id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, state, holds_identity, queued_next, follows_id, token,
  claim, node, attempt, retries, crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel,
  canvas_pending, duplicate_count, reason, requests
)
values (
  :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :priority_rank, 'queued', 0, 1, :follows_id, 0,
  '', '', 0, :retries, 0, :lease, :now, :now + :delay, :now + :expires_in,
  :now + :expires_in, 0, 0,
  :canvas, 0, 'runs after ' || :follows_id, ''
)
on conflict (identity) where queued_next do nothing
returning *
