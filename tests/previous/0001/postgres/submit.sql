-- Write a queued job that holds its identity, or let the submission meet the job in its way: that one is counted, keeps
-- its receipt and becomes what comes of it, or the submission's own job is queued next. A duplicate that must come to
-- an end under its own id gets a row, too, which sleeps until its leader ends.
-- in: the fields of the submission, :wake_in (seconds), :receipt_limit :window_over :now; take_keys has run before it
-- out: the "answer" with its outcome, and the "follower"; or the row under this id as "own" and its "leader". Nothing
--      when what it met has changed meanwhile: ask again, as after a unique violation (somebody wrote this very id).
-- A row goes from step to step as one value, "job": to hand on each of its columns costs more than all the rest.
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
own as (
  select jobs as job from onejob.jobs where id = :id
),
keyed as (
  select job_id, fingerprint <> :fingerprint as reused from onejob.keys, moment
  where key = cast(:key as text) and until > now
),
answered as ( -- before, but the answer was lost on its way
  select job_id, answer, outcome, moved from onejob.receipts
  where submission = :nonce and job_id = any(array(
    select id from onejob.jobs, moment where identity = :identity and holds and coalesce(identity_until > now, true)
    union all
    select job_id from keyed
  )) and not exists (select from own)
  limit 1
),
asked as (
  select now from moment where not exists (select from own) and not exists (select from answered)
),
known as (
  update onejob.jobs as jobs set
    duplicates = jobs.duplicates + 1,
    outcome = case
      when reused then 'rejected'
      when jobs.finished_at is not null then 'replayed'
      else 'attached'
    end,
    moved = false
  from keyed, asked
  where jobs.id = keyed.job_id
  returning id, task, identity, fingerprint, duplicates, finished_at, outcome, moved, jobs as job
),
expired as (
  update onejob.jobs as jobs set holds = false, entries = entries + 1
  from asked
  where identity = :identity and holds and identity_until <= now and not exists (select from keyed)
  returning id, entries, state, attempt, node
),
placed as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission, submitter, payload, options, urgency, retries, lease, undelivered, holds,
    created_at, run_at, expires_at, kept_until, wake_at, reason, outcome
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:urgency as integer),
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
  on conflict (identity) where holds do update set (
    duplicates, outcome, moved, fingerprint, payload, expires_at, run_at, urgency, wake_at, kept_until
  ) = (
    select
      jobs.duplicates + 1,
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
      case when met.outcome in ('rejected', 'queued_next') then jobs.kept_until
        else greatest(jobs.kept_until, excluded.kept_until) end
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
        case when waits then greatest(jobs.urgency, excluded.urgency) else jobs.urgency end
    ) as will (takes_over, due, urgent)
    cross join lateral (
      select
        (due, urgent) <> (jobs.run_at, jobs.urgency),
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
  returning id, task, identity, fingerprint, duplicates, finished_at, outcome, moved, jobs as job
),
queued as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission, submitter, payload, options, urgency, retries, lease, undelivered, queued_next,
    leader, created_at, run_at, expires_at, kept_until, wake_at, reason, outcome
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:urgency as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), true,
    placed.id, now, now + cast(:delay as float8), now + cast(:expires_in as float8),
    case when cast(:key as text) is not null then now + cast(:key_for as float8) end,
    now + cast(:expires_in as float8), 'runs after ' || placed.id, 'queued_next'
  from placed, moment
  where placed.outcome = 'queued_next'
  on conflict (identity) where queued_next do update set (
    outcome, moved, fingerprint, payload, expires_at, run_at, urgency, wake_at, kept_until
  ) = (
    select
      case when takes_over then 'replaced' else 'attached' end,
      moves,
      case when takes_over then excluded.fingerprint else jobs.fingerprint end,
      case when takes_over then excluded.payload else jobs.payload end,
      expiry,
      due,
      urgent,
      case when moves or takes_over then least(jobs.wake_at, expiry) else jobs.wake_at end,
      greatest(jobs.kept_until, excluded.kept_until)
    from (
      select
        coalesce(cast(:now as float8), extract(epoch from clock_timestamp())::float8),
        cast(:replaces as boolean) and jobs.fingerprint <> excluded.fingerprint
    ) as it (met_at, takes_over)
    cross join lateral (
      select
        case when takes_over then excluded.expires_at else jobs.expires_at end,
        least(met_at + cast(:delay as float8), greatest(jobs.run_at, jobs.created_at + cast(:max_wait as float8))),
        greatest(jobs.urgency, excluded.urgency)
    ) as will (expiry, due, urgent)
    cross join lateral (select (due, urgent) <> (jobs.run_at, jobs.urgency)) as met (moves)
  )
  where jobs.id <> excluded.id
  returning id, finished_at, outcome, moved, reason, jobs as job
),
met as (
  select id, task, identity, fingerprint, duplicates, outcome from known
  union all
  select id, task, identity, fingerprint, duplicates, outcome from placed where outcome <> 'admitted'
),
answer as (
  select id, finished_at, outcome, moved from known
  union all
  select id, finished_at, outcome, moved from placed where outcome <> 'queued_next'
  union all
  select id, finished_at, outcome, moved from queued
),
follower as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission, submitter, payload, options, urgency, retries, lease, undelivered, leader,
    created_at, run_at, wake_at, reason
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:urgency as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), answer.id,
    now, now, case when answer.finished_at is not null then now end, 'follows ' || answer.id
  from answer, moment
  where cast(:follows as boolean) and answer.id <> :id and answer.outcome <> 'rejected'
  returning id, reason, jobs as job
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, 1, now, 'submit', 'queued', 0, '', :door from placed, moment where outcome = 'admitted'
  union all
  select id, 1, now, 'queue_next', 'queued', 0, '', reason from queued, moment where outcome = 'queued_next'
  union all
  select id, 1, now, 'follow', 'queued', 0, '', reason from follower, moment
  union all
  select id, entries, now, 'free', state, attempt, node, :window_over from expired, moment
),
left_there as (
  insert into onejob.receipts (
    job_id, slot, at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved
  )
  select
    met.id, mod(met.duplicates - 1, cast(:receipt_limit as integer)), now, :nonce, answer.outcome, answer.id, :door,
    :submitter, :host, :fingerprint, met.outcome = 'replaced' or met.fingerprint <> :fingerprint, answer.moved
  from met, answer, moment
  on conflict (job_id, slot) do update set
    (at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved) = row (
      excluded.at, excluded.submission, excluded.outcome, excluded.answer, excluded.door, excluded.submitter,
      excluded.host, excluded.fingerprint, excluded.differs, excluded.moved
    )
),
tallied as (
  insert into onejob.tallies as tallies (task, identity, submitter, outcome, count)
  select met.task, met.identity, :submitter, answer.outcome, 1 from met, answer
  on conflict (identity, submitter, outcome, task) do update set count = tallies.count + 1
),
kept as (
  insert into onejob.keys as keys (key, job_id, fingerprint, until)
  select :key, id, :fingerprint, now + cast(:key_for as float8) from answer, moment
  where cast(:key as text) is not null and outcome <> 'rejected' and not exists (select from keyed)
  on conflict (key) do update set job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until
  where keys.until <= (select now from moment)
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
  select jobs from onejob.jobs where id = (select (job).leader from own)
  union all
  select jobs from onejob.jobs
  where id = (select coalesce((select id from onejob.jobs where id = answered.answer), answered.job_id) from answered)
)
select
  case
    when not exists (select from own) then case when outcome = '' then 'follower' else 'answer' end
    when id = :id then 'own'
    else 'leader'
  end as role,
  coalesce((select outcome from answered), outcome) as outcome,
  coalesce((select moved from answered), moved) as moved,
  coalesce((select outcome from answered), outcome) = 'rejected'
    and exists (select from keyed where reused and job_id = id) as key_reused,
  it.*
from (select (job).* from found) as it
