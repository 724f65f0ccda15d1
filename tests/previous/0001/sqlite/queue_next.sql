-- Write the job that runs after the one which holds the identity: it sleeps until that one gives it up.
-- in: the columns of the submission, :leader (the holder), :delay :expires_in (seconds), :now
-- out: the job; nothing when another one waits for the identity already
insert into jobs (
  id, task, identity, fingerprint, submission, submitter, payload, options, urgency, state, holds, queued_next, leader, token,
  claim, node, attempt, retries, crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel,
  undelivered, duplicates, reason, requests
)
values (
  :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :urgency, 'queued', 0, 1, :leader, 0,
  '', '', 0, :retries, 0, :lease, :now, :now + :delay, :now + :expires_in,
  :now + :expires_in, 0, 0,
  :canvas, 0, 'runs after ' || :leader, ''
)
on conflict (identity) where queued_next do nothing
returning *
