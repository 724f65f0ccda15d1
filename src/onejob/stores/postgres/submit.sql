-- Write a queued job that holds its identity, or let the submission meet the job in its way: that one is counted, keeps
-- its duplicate and becomes what comes of it, or the submission's own job is queued next. A duplicate that must come to
-- an end under its own id gets a row, too, which sleeps until its leader ends.
-- in: the fields of the submission, :wake_in (seconds), :joins :duplicate_limit :window_over :now; take_keys ran before
-- out: the "answer" with its outcome, and the "follower"; or the row under this id as "own" and its "leader". Nothing
--      when what it met has changed meanwhile: ask again, as after a unique violation (somebody wrote this very id).
-- A row goes from step to step as one value, "job": to hand on each of its columns costs more than all the rest.
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
own as (
  select jobs as job from onejob.jobs where id = :id
),
keyed as (
  select job_id, fingerprint <> :fingerprint as reused from onejob.keys, clock
  where key = cast(:key as text) and until > now
),
answered as ( -- before, but the answer was lost on its way
  select job_id, answered_by, outcome, rescheduled from onejob.duplicates
  where submission_nonce = :nonce and job_id = any(array(
    select id from onejob.jobs, clock where identity = :identity and holds_identity and coalesce(identity_until > now, true)
    union all
    select job_id from keyed
  )) and not exists (select from own)
  limit 1
),
asked as (
  select now from clock where not exists (select from own) and not exists (select from answered)
),
known as (
  update onejob.jobs as jobs set
    duplicate_count = jobs.duplicate_count + 1,
    outcome = case
      when reused then 'rejected'
      when jobs.finished_at is not null then 'replayed'
      else 'attached'
    end,
    rescheduled = false
  from keyed, asked
  where jobs.id = keyed.job_id
  returning id, task, identity, fingerprint, duplicate_count, finished_at, outcome, rescheduled, jobs as job
),
expired as (
  update onejob.jobs as jobs set holds_identity = false, entries = entries + 1
  from asked
  where identity = :identity and holds_identity and identity_until <= now and not exists (select from keyed)
  returning id, entries, state, attempt, node
),
placed as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, retries, lease, canvas_pending, holds_identity,
    created_at, run_at, expires_at, key_retained_until, wake_at, reason, outcome
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:priority_rank as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), true,
    now, now + cast(:delay as float8), now + cast(:expires_in as float8),
    case when cast(:key as text) is not null then now + cast(:key_for as float8) end,
    least(
      now + case when cast(:delay as float8) > 0 then cast(:delay as float8) else cast(:wake_in as float8) end,
      now + cast(:expires_in as float8)
    ),
    'submitted', 'admitted'
  from asked
  where not exists (select from keyed) and (select count(*) from expired) >= 0 -- which has to come first
  -- What comes of a meeting is decided by the row under its lock, which may be newer than what is read elsewhere here.
  on conflict (identity) where holds_identity do update set (
    duplicate_count, outcome, rescheduled, fingerprint, payload, expires_at, run_at, priority_rank, wake_at, key_retained_until
  ) = (
    select
      jobs.duplicate_count + 1,
      met.outcome,
      moves,
      case when takes_over then excluded.fingerprint else jobs.fingerprint end,
      case when takes_over then excluded.payload else jobs.payload end,
      expiry,
      due,
      urgent,
      case
        when moves then least(greatest(due, case when due <= met_at then met_at + cast(:wake_in as float8) end), expiry)
        when takes_over then least(jobs.wake_at, expiry)
        else jobs.wake_at
      end,
      case when met.outcome in ('rejected', 'queued_next') then jobs.key_retained_until
        else greatest(jobs.key_retained_until, excluded.key_retained_until) end
    from (
      -- Whoever has waited for the lock must not seem to have come before the job that is there.
      select
        coalesce(cast(:now as float8), extract(epoch from clock_timestamp())::float8),
        jobs.attempt = 0 and jobs.finished_at is null and not cast(:rejects as boolean)
    ) as it (met_at, waits)
    cross join lateral (
      select
        waits and cast(:replaces as boolean) and jobs.fingerprint <> excluded.fingerprint,
        case when waits
          then least(
            met_at + cast(:delay as float8), greatest(jobs.run_at, jobs.created_at + cast(:max_wait as float8))
          )
          else jobs.run_at end,
        case when waits then greatest(jobs.priority_rank, excluded.priority_rank) else jobs.priority_rank end
    ) as will (takes_over, due, urgent)
    cross join lateral (
      select
        (due, urgent) <> (jobs.run_at, jobs.priority_rank),
        case when takes_over then excluded.expires_at else jobs.expires_at end,
        case
          when cast(:rejects as boolean) then 'rejected'
          when jobs.finished_at is not null then 'replayed'
          when takes_over then 'replaced'
          when not waits and cast(:queues_next as boolean) then 'queued_next'
          else 'attached'
        end
    ) as met (moves, expiry, outcome)
  )
  where jobs.id <> excluded.id
  returning id, task, identity, fingerprint, duplicate_count, finished_at, outcome, rescheduled, jobs as job
),
queued as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, retries, lease, canvas_pending, queued_next,
    follows_id, created_at, run_at, expires_at, key_retained_until, wake_at, reason, outcome
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:priority_rank as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), true,
    placed.id, now, now + cast(:delay as float8), now + cast(:expires_in as float8),
    case when cast(:key as text) is not null then now + cast(:key_for as float8) end,
    now + cast(:expires_in as float8), 'runs after ' || placed.id, 'queued_next'
  from placed, clock
  where placed.outcome = 'queued_next'
  on conflict (identity) where queued_next do update set (
    outcome, rescheduled, fingerprint, payload, expires_at, run_at, priority_rank, wake_at, key_retained_until
  ) = (
    select
      case
        -- A concurrent transaction has just written this id, and `placed` has counted it again. To write the first line
        -- of history twice is a unique violation, which undoes that; the transaction of a user must not fail for it.
        when jobs.id = excluded.id and not cast(:joins as boolean) then 'queued_next'
        when takes_over then 'replaced'
        else 'attached'
      end,
      moves,
      case when takes_over then excluded.fingerprint else jobs.fingerprint end,
      case when takes_over then excluded.payload else jobs.payload end,
      expiry,
      due,
      urgent,
      case when moves or takes_over then least(jobs.wake_at, expiry) else jobs.wake_at end,
      greatest(jobs.key_retained_until, excluded.key_retained_until)
    from (
      select
        coalesce(cast(:now as float8), extract(epoch from clock_timestamp())::float8),
        cast(:replaces as boolean) and jobs.fingerprint <> excluded.fingerprint
    ) as it (met_at, takes_over)
    cross join lateral (
      select
        case when takes_over then excluded.expires_at else jobs.expires_at end,
        least(met_at + cast(:delay as float8), greatest(jobs.run_at, jobs.created_at + cast(:max_wait as float8))),
        greatest(jobs.priority_rank, excluded.priority_rank)
    ) as will (expiry, due, urgent)
    cross join lateral (select (due, urgent) <> (jobs.run_at, jobs.priority_rank)) as met (moves)
  )
  returning id, finished_at, outcome, rescheduled, reason, jobs as job
),
met as (
  select id, task, identity, fingerprint, duplicate_count, outcome from known
  union all
  select id, task, identity, fingerprint, duplicate_count, outcome from placed where outcome <> 'admitted'
),
answer as (
  select id, finished_at, outcome, rescheduled from known
  union all
  select id, finished_at, outcome, rescheduled from placed where outcome <> 'queued_next'
  union all
  select id, finished_at, outcome, rescheduled from queued
),
follower as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, retries, lease, canvas_pending, follows_id,
    created_at, run_at, wake_at, reason
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:priority_rank as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), answer.id,
    now, now, case when answer.finished_at is not null then now end, 'follows ' || answer.id
  from answer, clock
  where cast(:follows as boolean) and answer.id <> :id and answer.outcome <> 'rejected'
  returning id, reason, jobs as job
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, 1, now, 'submit', 'queued', 0, '', :source from placed, clock where outcome = 'admitted'
  union all
  select id, 1, now, 'queue_next', 'queued', 0, '', reason from queued, clock where outcome = 'queued_next'
  union all
  select id, 1, now, 'follow', 'queued', 0, '', reason from follower, clock
  union all
  select id, entries, now, 'release_identity', state, attempt, node, :window_over from expired, clock
),
left_there as (
  insert into onejob.duplicates (
    job_id, slot, at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled
  )
  select
    met.id, mod(met.duplicate_count - 1, cast(:duplicate_limit as integer)), now, :nonce, answer.outcome, answer.id, :source,
    :submitter, :host, :fingerprint, met.outcome = 'replaced' or met.fingerprint <> :fingerprint, answer.rescheduled
  from met, answer, clock
  on conflict (job_id, slot) do update set
    (at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled) = row (
      excluded.at, excluded.submission_nonce, excluded.outcome, excluded.answered_by, excluded.source, excluded.submitter,
      excluded.host, excluded.fingerprint, excluded.arguments_differ, excluded.rescheduled
    )
),
tallied as (
  insert into onejob.duplicate_stats as duplicate_stats (task, identity, submitter, outcome, count)
  select met.task, met.identity, :submitter, answer.outcome, 1 from met, answer
  on conflict (identity, submitter, outcome, task) do update set count = duplicate_stats.count + 1
),
kept as (
  insert into onejob.keys as keys (key, job_id, fingerprint, until)
  select :key, id, :fingerprint, now + cast(:key_for as float8) from answer, clock
  where cast(:key as text) is not null and outcome <> 'rejected' and not exists (select from keyed)
  on conflict (key) do update set job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until
  where keys.until <= (select now from clock)
),
given_back as (
  delete from onejob.keys
  where key = cast(:key as text) and job_id is null and not exists (select from answer where outcome <> 'rejected')
),
found as (
  select job from known
  union all
  select job from placed where outcome <> 'queued_next'
  union all
  select job from queued
  union all
  select job from follower
  union all
  select job from own
  union all
  select jobs from onejob.jobs where id = (select (job).follows_id from own)
  union all
  select jobs from onejob.jobs
  where id = (select coalesce((select id from onejob.jobs where id = answered.answered_by), answered.job_id) from answered)
)
select
  case
    when not exists (select from own) then case when outcome = '' then 'follower' else 'answer' end
    when id = :id then 'own'
    else 'followed'
  end as role,
  coalesce((select outcome from answered), outcome) as outcome,
  coalesce((select rescheduled from answered), rescheduled) as rescheduled,
  coalesce((select outcome from answered), outcome) = 'rejected'
    and exists (select from keyed where reused and job_id = id) as key_reused,
  it.*
from (select (job).* from found) as it
