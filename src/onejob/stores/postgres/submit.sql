-- Write a queued job that holds its identity, or let the submission meet the job in its way: that one is counted, keeps
-- its duplicate and becomes what comes of it, or the submission's own job is queued next. A duplicate that must come to
-- an end under its own id gets a row, too, which sleeps until its leader ends.
-- in: the fields of the submission, :wake_in (seconds), :joins :duplicate_limit :window_over :now; take_keys ran before
-- out: the "answer" with its outcome, and the "follower"; or the row under this id as "own" and its "leader". Nothing
--      when what it met has changed meanwhile: ask again, as after a unique violation (somebody wrote this very id).
-- A row goes from step to step as one value, "job": to hand on each of its columns costs more than all the rest.
with {clock},
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
  {insert_holder}
  from asked
  where not exists (select from keyed) and (select count(*) from expired) >= 0 -- which has to come first
  on conflict (identity) where holds_identity do update set duplicate_count = jobs.duplicate_count + 1, {answer_duplicate}
  where jobs.id <> excluded.id
  returning id, task, identity, fingerprint, duplicate_count, finished_at, outcome, rescheduled, jobs as job
),
queued as (
  insert into onejob.jobs as jobs (
    {new_job_columns}, queued_next, follows_id, created_at, run_at, expires_at, key_retained_until, wake_at, reason, outcome
  )
  select {new_job_values},
    true, placed.id, now, now + cast(:delay as float8), now + cast(:expires_in as float8), {key_retained_until},
    now + cast(:expires_in as float8), 'runs after ' || placed.id, 'queued_next'
  from placed, clock
  where placed.outcome = 'queued_next'
  on conflict (identity) where queued_next do update set {answer_duplicate}
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
  insert into onejob.jobs as jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
  select {new_job_values},
    answer.id, now, now, case when answer.finished_at is not null then now end, 'follows ' || answer.id
  from answer, clock
  where cast(:follows as boolean) and answer.id <> :id and answer.outcome <> 'rejected'
  returning id, reason, jobs as job
),
noted as (
  insert into onejob.history ({history_columns})
  select id, 1, now, 'submit', 'queued', 0, '', :source from placed, clock where outcome = 'admitted'
  union all
  select id, 1, now, 'queue_next', 'queued', 0, '', reason from queued, clock where outcome = 'queued_next'
  union all
  select id, 1, now, 'follow', 'queued', 0, '', reason from follower, clock
  union all
  select id, entries, now, 'release_identity', state, attempt, node, :window_over from expired, clock
),
left_there as (
  insert into onejob.duplicates as duplicates ({duplicate_columns})
  select
    met.id, mod(met.duplicate_count - 1, cast(:duplicate_limit as integer)), now, :nonce, answer.outcome, answer.id, :source,
    :submitter, :host, :fingerprint, met.outcome = 'replaced' or met.fingerprint <> :fingerprint, answer.rescheduled
  from met, answer, clock
  {replace_duplicate}
),
tallied as (
  insert into onejob.duplicate_stats as duplicate_stats (task, identity, submitter, outcome, count)
  select met.task, met.identity, :submitter, answer.outcome, 1 from met, answer
  on conflict (identity, submitter, outcome, task) do update set count = duplicate_stats.count + 1
),
{keep_key},
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
