-- Compare and set: one change of one job. A null field leaves its column unchanged.
-- in: the fields of the change, :is_sent (whether `published_at` is now; null: it is unchanged) :now
-- out: the job; nothing when a condition does not hold, or when the request is repeated
update jobs set
  state = coalesce(:target, state),
  follows_id = case when not ((:reopens and not :rejoins) or (:ends and queued_next)) then follows_id end,
  holds_identity = (holds_identity and :keeps_identity) or (:reopens and not :rejoins),
  queued_next = queued_next and not :ends and not :reopens,
  identity_until = coalesce(:identity_until, :now + :identity_for, identity_until),
  lease_until = case when :target is null then lease_until end,
  wake_at = case
    when :wake_after is null then wake_at
    when :ends or (finished_at is not null and not :reopens) then :now + :wake_after
    else min(:now + :wake_after, coalesce(expires_at, :now + :wake_after))
  end,
  run_at = coalesce(:now + :run_in, run_at),
  finished_at = case when :ends then :now when not :reopens then finished_at end,
  published_at = case when :is_sent then :now when :is_sent is null then published_at end,
  result = coalesce(:result, case when not :reopens then result end),
  error = coalesce(:error, case when not :reopens then error end),
  {new_values},
  requests = substr(:request_id || ' ' || requests, 1, 136)
where id = :job_id
  and {in_sources}
  and (:token is null or token = :token)
  and (:seen_run_at is null or abs(run_at - :seen_run_at) < 0.001)
  and (not :lapsed or lease_until <= :now)
  and (not :overdue or expires_at <= :now)
  and (not :unnotified or canvas_pending)
  and not (
    :reopens and not :rejoins and exists (select 1 from jobs as live where live.identity = jobs.identity and live.holds_identity)
  )
  and instr(' ' || requests, ' ' || :request_id || ' ') = 0
returning {job_columns}
