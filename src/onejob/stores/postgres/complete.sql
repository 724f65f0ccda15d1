-- Complete a run of a job without followers: the end of most jobs, at a fraction of the cost of `apply`, which runs when
-- this writes nothing. The row implies the history entry.
-- in: the fields of the change (sources as an array), of which the others have their defaults, :end_channel :now
-- out: the job, "applied"
with {clock}
update onejob.jobs as jobs set
  state = :target,
  holds_identity = jobs.holds_identity and cast(:keeps_identity as boolean),
  identity_until = coalesce(cast(:identity_until as float8), now + cast(:identity_for as float8), jobs.identity_until),
  lease_until = null,
  wake_at = now + cast(:wake_after as float8),
  finished_at = now,
  published = coalesce(cast(:published as integer), jobs.published),
  publish_error = coalesce(cast(:publish_error as text), jobs.publish_error),
  result = coalesce(cast(:result as text), jobs.result),
  reason = coalesce(cast(:reason as text), jobs.reason),
  requests = left(cast(:request_id as text) || ' ' || jobs.requests, 136)
from clock
where jobs.id = :job_id
  and jobs.state = any(cast(:sources as text[]))
  and jobs.token = cast(:token as bigint)
  and not exists (select from onejob.jobs as follower where follows_id = :job_id and finished_at is null)
  -- Whoever writes a follower writes this row, too. After a wait for that, the line above has an old snapshot, and the
  -- next one compares the new version of the row with the version in that snapshot.
  and jobs.xmin = (select xmin from onejob.jobs where id = :job_id)
  and strpos(' ' || jobs.requests, ' ' || cast(:request_id as text) || ' ') = 0
returning true as applied, jobs.*, case when jobs.awaited then pg_notify(:end_channel, jobs.id) end
