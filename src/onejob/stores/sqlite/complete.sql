-- Complete a run of a job without followers: the end of most jobs, at a fraction of the cost of `apply`, which runs when
-- this changes nothing. The row implies the history entry.
-- in: the fields of the change, of which the others have their defaults, :now
-- out: the job
update jobs set
  state = :target,
  holds_identity = holds_identity and :keeps_identity,
  identity_until = coalesce(:identity_until, :now + :identity_for, identity_until),
  lease_until = null,
  wake_at = :now + :wake_after,
  finished_at = :now,
  published = coalesce(:published, published),
  publish_error = coalesce(:publish_error, publish_error),
  result = coalesce(:result, result),
  reason = coalesce(:reason, reason),
  requests = substr(:request_id || ' ' || requests, 1, 136)
where id = :job_id
  and {in_sources}
  and token = :token
  and not exists (select 1 from jobs as follower where follower.follows_id = :job_id and follower.finished_at is null)
  and instr(' ' || requests, ' ' || :request_id || ' ') = 0
returning {job_columns}
