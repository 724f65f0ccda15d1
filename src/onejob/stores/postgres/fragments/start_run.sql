-- name: start_run
-- The values that every claim writes: a token, a lease, no expiry and no pause.
-- in: now, :nonce :node :target
state = :target,
    token = greatest(jobs.token + 1, (now * 1000000)::bigint),
    claim = :nonce,
    node = :node,
    attempt = jobs.attempt + 1,
    lease_until = now + jobs.lease,
    wake_at = now + jobs.lease,
    started_at = now,
    expires_at = null,
    published = 0,
    published_at = null,
    publish_error = '',
    parked_on = null,
    reason = 'running on ' || cast(:node as text),
    requests = left(cast(:nonce as text) || ' ' || jobs.requests, 136)
-- name: is_claimable
-- Whether a claim may start a run.
-- in: now, :nonce :sources (array)
jobs.state = any(cast(:sources as text[]))
    and jobs.run_at <= now
    and (jobs.expires_at is null or jobs.expires_at > now)
    and jobs.cancel = 0
    and not jobs.queued_next
    and strpos(' ' || jobs.requests, ' ' || cast(:nonce as text) || ' ') = 0
-- name: insert_last_claim
-- Store the history entry of the previous claim, if there is one.
-- in: `jobs` (the job before this claim), `claimed` (the job after it)
insert into onejob.history ({history_columns})
  select
    jobs.id, claimed.entries, jobs.started_at, 'claim', claimed.state, jobs.attempt, jobs.node,
    'attempt ' || jobs.attempt || ' on ' || jobs.node
  from jobs, claimed
  where jobs.attempt > 0
