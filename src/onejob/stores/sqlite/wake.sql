-- Ring the alarms of all jobs that follow an ended one, and give its identity, if it is free, to the job queued next.
-- in: :job_id :now
-- out: id and holds of each of them
update jobs set
  wake_at = min(iif(queued_next, max(run_at, :now), :now), coalesce(expires_at, 9e999)),
  follows_id = iif(queued_next and free, null, follows_id),
  reason = iif(queued_next and free, 'it is its turn', reason),
  holds_identity = queued_next and free,
  queued_next = queued_next and not free
from (
  select not exists (
    select 1 from jobs as ended join jobs as live using (identity) where ended.id = :job_id and live.holds_identity
  ) as free
)
where follows_id = :job_id and finished_at is null
returning id, holds_identity
