-- Start a run: set a new token and lease, and clear the job's expiry and its pause.
-- in: :job_id :nonce :node :sources :target :is_first (whether it must be the job's first claim) :now
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
  and {in_sources}
  and not (:is_first and attempt > 0)
  and run_at <= :now
  and (expires_at is null or expires_at > :now)
  and cancel = 0
  and not queued_next
  and instr(' ' || requests, ' ' || :nonce || ' ') = 0
returning {job_columns}
