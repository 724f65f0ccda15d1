-- Write the row of a job that holds no identity and waits for the end of another one, its leader: it sleeps until then,
-- or rings at once when that one has ended.
-- in: the columns of the submission, :leader :reason :now
-- out: the follower
insert into jobs (
  id, task, identity, fingerprint, submission, submitter, payload, options, urgency, state, holds, queued_next, leader, token,
  claim, node, attempt, retries, crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel,
  undelivered, duplicates, reason, requests
)
values (
  :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :urgency, 'queued', 0, 0, :leader, 0,
  '', '', 0, :retries, 0, :lease, :now, :now, null,
  (select :now from jobs where id = :leader and finished_at is not null), 0, 0,
  :canvas, 0, :reason, ''
)
returning *
