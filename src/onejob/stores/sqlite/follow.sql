-- Write the row of a duplicate that must come to an end under its own id: it sleeps until its leader ends.
-- in: the columns of the submission, :leader, :now
-- out: the follower
insert into jobs (
  id, task, identity, fingerprint, submission, payload, state, holds, leader, token, claim, node, attempt, retries,
  crashes, lease, created_at, run_at, published, cancel, undelivered, duplicates, reason, requests
)
values (
  :id, :task, :identity, :fingerprint, :nonce, :payload, 'queued', 0, :leader, 0, '', '', 0, :retries,
  0, :lease, :now, :now, 0, 0, :canvas, 0, 'follows ' || :leader, ''
)
returning *
