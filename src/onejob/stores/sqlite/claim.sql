-- name: claim
-- Start a run: set a new token and lease, and clear the job's expiry and its pause.
-- in: :job_id :nonce :node :sources :target :is_first (whether it must be the first claim of a job without limits) :now
-- out: the job; nothing when it is not in the sources, not due, expired or queued next, when its cancellation was
--      requested, or when the claim is repeated
update jobs set
  state = :target,
  token = max(token + 1, cast(:now * 1000000 as integer)),
  claim = :nonce,
  node = :node,
  attempt = attempt + 1,
  lease_until = :now + lease,
  wake_at = :now + lease,
  started_at = :now,
  expires_at = null,
  published = 0,
  published_at = null,
  publish_error = '',
  parked_on = null,
  reason = 'running on ' || :node,
  requests = substr(:nonce || ' ' || requests, 1, 136)
where id = :job_id
  and not (:is_first and (attempt > 0 or (limit_keys is not null and follows_id is null)))
  and {is_claimable}
returning {job_columns}
-- name: can_claim
-- in: :job_id :nonce :sources :now
-- out: a row if `claim` would start a run
select id from jobs where id = :job_id and {is_claimable}
