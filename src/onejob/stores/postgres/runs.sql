-- name: report
-- Store a run's progress.
-- in: :job_id :token :sources (array) :progress
-- out: the job's cancel; nothing when the token is stale
with {unsynchronized_clock}
update onejob.jobs set progress = :progress from clock
where id = :job_id and token = cast(:token as bigint) and state = any(cast(:sources as text[]))
returning cancel
-- name: keep_step
-- Memoise a step; an earlier value wins. The lock keeps a new run from starting between the read and the write.
-- in: :job_id :token :sources (array) :name :value
-- out: the stored value; nothing when the token is stale
with run as (
  select id from onejob.jobs
  where id = :job_id and token = cast(:token as bigint) and state = any(cast(:sources as text[]))
  for no key update
)
insert into onejob.steps (job_id, name, value)
select id, :name, :value from run
on conflict (job_id, name) do update set value = steps.value
returning value
-- name: postpone
-- Set wake_at of jobs that wait for a run, or whose canvas waits.
-- in: :ids :wake_after (seconds) :taken (wake_at as it was seen, or null) (arrays, pairwise) :lost (only published jobs that may run and are not parked, which a sweep has to publish again)
--     :now
with {unsynchronized_clock}
update onejob.jobs as jobs set
  wake_at = least(
    now + (cast(:wake_after as float8[]))[array_position(cast(:ids as text[]), id)],
    case when finished_at is null then expires_at end
  ),
  published_at = case when not cast(:lost as boolean) then published_at end
from clock
where id = any(cast(:ids as text[])) and {is_waiting_by_id}
  and not (cast(:lost as boolean) and (published_at is null or run_at > now or coalesce(parked_on, '') <> ''))
  and coalesce(abs(wake_at - (cast(:taken as float8[]))[array_position(cast(:ids as text[]), id)]) < 0.001, true)
returning {notify_workers}
