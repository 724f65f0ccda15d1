-- Make the followers of an ended job due, unless they run, and give its identity, if it is free, to the job that is
-- queued next.
-- in: :job_id :now
-- out: id and holds_identity of each of them
update jobs set
  wake_at = min(iif(queued_next, max(run_at, :now), :now), coalesce(expires_at, 9e999)),
  follows_id = iif(queued_next and is_free, null, follows_id),
  reason = iif(queued_next and is_free, 'promoted', reason),
  holds_identity = queued_next and is_free,
  queued_next = queued_next and not is_free
from (
  select not exists (
    select 1 from jobs as ended join jobs as live using (identity) where ended.id = :job_id and live.holds_identity
  ) as is_free
)
where follows_id = :job_id and finished_at is null and lease_until is null
returning id, holds_identity
