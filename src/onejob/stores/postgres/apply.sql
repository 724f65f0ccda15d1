-- Compare and set: one change of one job. A null field leaves its column unchanged. A job that is reopened takes its
-- identity, also from a holder that has lost it by `held_until`.
-- in: the fields of the change (sources as an array), :is_sent (whether `published_at` is now; null: it is unchanged)
--     :keeps_entry (not what the row implies) :end_channel :now
-- out: the job, and whether the change is "applied", also for a repeated request; nothing when the job does not exist.
--      The setting ledger.applied_request has the request for the statements that follow in the transaction.
with {clock},
job as (
  select *, strpos(' ' || requests, ' ' || cast(:request_id as text) || ' ') > 0 as repeated
  from onejob.jobs where id = :job_id for no key update
),
expired as (
  update onejob.jobs as jobs set holds_identity = false, entries = jobs.entries + 1
  from job, clock
  where cast(:reopens as boolean) and not cast(:rejoins as boolean) and not job.repeated
    and job.state = any(cast(:sources as text[]))
    and jobs.identity = job.identity and jobs.holds_identity and {held_until} <= now
  returning jobs.id, jobs.entries, jobs.state, jobs.attempt, jobs.node, {release_reason} as release_reason
),
changed as (
  update onejob.jobs as jobs set
    state = coalesce(cast(:target as text), jobs.state),
    follows_id = case
      when not (
        (cast(:reopens as boolean) and not cast(:rejoins as boolean)) or (cast(:ends as boolean) and jobs.queued_next)
      ) then jobs.follows_id
    end,
    holds_identity = (jobs.holds_identity and cast(:keeps_identity as boolean))
      or (cast(:reopens as boolean) and not cast(:rejoins as boolean)),
    queued_next = jobs.queued_next and not cast(:ends as boolean) and not cast(:reopens as boolean),
    identity_until = coalesce(cast(:identity_until as float8), now + cast(:identity_for as float8), jobs.identity_until),
    lease_until = case when cast(:target as text) is null then jobs.lease_until end,
    wake_at = case
      when cast(:wake_after as float8) is null then jobs.wake_at
      when cast(:ends as boolean) or (jobs.finished_at is not null and not cast(:reopens as boolean))
        then now + cast(:wake_after as float8)
      else least(now + cast(:wake_after as float8), jobs.expires_at)
    end,
    run_at = coalesce(now + cast(:run_in as float8), jobs.run_at),
    finished_at = case when cast(:ends as boolean) then now when not cast(:reopens as boolean) then jobs.finished_at end,
    published_at = case
      when cast(:is_sent as boolean) then now when cast(:is_sent as boolean) is null then jobs.published_at
    end,
    result = coalesce(cast(:result as text), case when not cast(:reopens as boolean) then jobs.result end),
    error = coalesce(cast(:error as text), case when not cast(:reopens as boolean) then jobs.error end),
    {new_values},
    requests = left(cast(:request_id as text) || ' ' || jobs.requests, 136),
    entries = jobs.entries + cast(:keeps_entry as boolean)::integer
  from job, clock
  where jobs.id = job.id
    and job.state = any(cast(:sources as text[]))
    and (cast(:token as bigint) is null or job.token = cast(:token as bigint))
    and (cast(:seen_run_at as float8) is null or abs(job.run_at - cast(:seen_run_at as float8)) < 0.001)
    and (not cast(:lapsed as boolean) or job.lease_until <= now)
    and (not cast(:overdue as boolean) or job.expires_at <= now)
    and (not cast(:unnotified as boolean) or job.canvas_pending)
    and not (
      cast(:reopens as boolean) and not cast(:rejoins as boolean)
      and (select count(*) from expired) >= 0 -- which must run first
      and exists (
        select from onejob.jobs
        where jobs.identity = job.identity and jobs.holds_identity and coalesce({held_until} > now, true)
      )
    )
    and not job.repeated
  returning jobs.*, {notify_workers}
),
inserted_history as (
  insert into onejob.history ({history_columns})
  select id, entries, now, :event, state, attempt, node, :detail from changed, clock where cast(:keeps_entry as boolean)
  union all
  select id, entries, now, 'release_identity', state, attempt, node, release_reason from expired, clock
),
deleted_steps as (
  delete from onejob.steps using changed where cast(:forgets_steps as boolean) and job_id = changed.id
),
trimmed_history as (
  delete from onejob.history using changed
  where job_id = changed.id and changed.entries > {history_limit} and seq <= changed.entries - {history_limit}
)
select true as applied, changed.*, set_config('ledger.applied_request', :request_id, true),
  case when cast(:ends as boolean) and awaited then pg_notify(:end_channel, id) end::text
from changed
union all
select repeated, job.*, null, null from job where not exists (select from changed)
