-- Let a job that a submission has met become what came of that.
-- in: :job_id :takes_over :fingerprint :payload :expires_at :run_at :priority_rank :wake_at (null: as it is)
-- out: the job
update jobs set
  fingerprint = iif(:takes_over, :fingerprint, fingerprint),
  payload = iif(:takes_over, :payload, payload),
  expires_at = :expires_at,
  run_at = :run_at,
  priority_rank = :priority_rank,
  wake_at = coalesce(min(coalesce(:wake_at, wake_at), coalesce(:expires_at, 9e999)), :expires_at)
where id = :job_id
returning *
