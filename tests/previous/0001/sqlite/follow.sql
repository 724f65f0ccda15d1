-- Write the row of a duplicate that must come to an end under its own id: it sleeps until its leader ends, or rings at
-- once when that one has ended and still holds the identity.
-- in: the columns of the submission, :leader, :now
-- out: the follower
insert into jobs (
  id, task, identity, fingerprint, submission, payload, state, holds, leader, token, claim, node, attempt, retries,
  crashes, lease, created_at, run_at, wake_at, published, cancel, undelivered, duplicates, reason, requests
)
values (
  :id, :task, :identity, :fingerprint, :nonce, :payload, 'queued', 0, :leader, 0, '', '', 0, :retries,
  0, :lease, :now, :now, (select :now from jobs where id = :leader and finished_at is not null), 0, 0, :canvas, 0, 'follows ' || :leader, ''
)
returning *
