-- Write the row of a job that holds no identity and waits for the end of another one, its leader: it sleeps until then,
-- or rings at once when that one has ended.
-- in: the columns of the submission, :follows_id :reason :now
-- out: the follower
insert into jobs (
  id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, state, holds_identity, queued_next, follows_id, token,
  claim, node, attempt, retries, crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel,
  canvas_pending, duplicate_count, reason, requests
)
values (
  :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :priority_rank, 'queued', 0, 0, :follows_id, 0,
  '', '', 0, :retries, 0, :lease, :now, :now, null,
  (select :now from jobs where id = :follows_id and finished_at is not null), 0, 0,
  :canvas, 0, :reason, ''
)
returning *
