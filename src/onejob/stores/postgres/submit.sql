-- Write a queued job that holds its identity, or resolve a duplicate: the existing job is updated, its duplicate is
-- stored and counted, or the submission's own job is queued next. With :follows a duplicate gets a row of its own, as a
-- follower, which is due when the followed job ends.
-- variants: charged
-- in: the fields of the submission, :wake_after (seconds) :is_sent :is_offered, :joins :now; take_keys ran before
-- out: the "answer" with its outcome, and the "follower"; or the row that has this id as "own", its "followed" job, and
--      the "keyed" one that the idempotency key names.
--      With :charges "exceeded", with the quota as its outcome, when a new job would exceed that.
--      Nothing when the existing job changed meanwhile: retry, as after a unique violation (a concurrent insert of the
--      id). Rows are passed on as one composite value, "job": to pass on each column costs more than everything else.
with {clock},
{given_new},
own as (
  select id, follows_id, queued_next, fingerprint, submission_nonce from onejob.jobs where id = :id
),
keyed as (
  select job_id, fingerprint <> :fingerprint as key_reused from onejob.keys, clock
  where key = cast(:key as text) and until > now
),
earlier_answer as ( -- to a request that is repeated
  select job_id, answered_by, outcome, rescheduled from onejob.duplicates
  where submission_nonce = :nonce and job_id = any(array(
    select id from onejob.jobs, clock
    where identity = :identity and holds_identity and coalesce({held_until} > now, true)
    union all
    select job_id from keyed
  )) and not exists (select from own)
  limit 1
),
new_request as (
  select now from clock where not exists (select from own) and not exists (select from earlier_answer)
),
known as ( -- whether the snapshot has the duplicate of this request, which is no longer kept: it is counted anew
  select from onejob.jobs as jobs
  where (identity = :identity and holds_identity or id = (select job_id from keyed)) and {is_repeated}
),
keyed_job as (
  update onejob.jobs as jobs set
    duplicate_count = jobs.duplicate_count + 1,
    outcome = case
      when key_reused then 'rejected'
      when jobs.finished_at is not null then 'replayed'
      else 'attached'
    end,
    rescheduled = false,
    duplicate_nonces = {add_nonce}
  from keyed, new_request
  where jobs.id = keyed.job_id and not ({is_repeated} and not exists (select from known))
  returning id, fingerprint, duplicate_count, finished_at, outcome, rescheduled, jobs as job
),
/* charged:
{quotas},
held as ( -- over a quota, the job that holds the identity, which is locked as it is
  select id, attempt, finished_at from onejob.jobs, new_request
  where identity = :identity and holds_identity and coalesce({held_until} > now, true)
    and exists (select from exceeded) and not exists (select from keyed)
  for update of jobs
),
held_next as (
  select id from onejob.jobs, new_request
  where identity = :identity and queued_next and coalesce(expires_at > now, true) and exists (select from held)
  for update of jobs
),
refusal as (
  select quota from exceeded, new_request
  where not exists (select from keyed) and not exists (select from held_next) and not exists (
    select from held
    where cast(:rejects as boolean) or not cast(:queue_next as boolean) or attempt = 0 or finished_at is not null
  )
),
*/
expired as (
  update onejob.jobs as jobs set holds_identity = false, entries = entries + 1
  from new_request
  where identity = :identity and holds_identity and {held_until} <= now and not exists (select from keyed)
  returning id, entries, state, attempt, node, {release_reason} as release_reason
),
inserted as (
  insert into onejob.jobs as jobs ({holder_columns}, key_retained_until, outcome)
  select {holder_values}, {key_retained_until}, 'admitted'
  from given, new_request
  where not exists (select from keyed) and (select count(*) from expired) >= 0 -- which must run first
    /* charged: and not exists (select from refusal) */
  on conflict (identity) where holds_identity do update set
    duplicate_count = jobs.duplicate_count + 1, duplicate_nonces = {add_nonce}, {answer_duplicate}
  where jobs.id <> excluded.id and not ({is_repeated} and not exists (select from known))
  returning id, fingerprint, duplicate_count, finished_at, outcome, rescheduled, jobs as job, {notify_workers}
),
expired_next as ( -- a sweep cancels it
  update onejob.jobs as jobs set queued_next = false, follows_id = null
  from inserted, clock
  where inserted.outcome = 'queued_next' and jobs.identity = :identity and jobs.queued_next and jobs.expires_at <= now
  returning jobs.id
),
queued as (
  insert into onejob.jobs as jobs (
    {new_job_columns}, queued_next, follows_id, created_at, run_at, expires_at, key_retained_until, wake_at, reason,
    outcome
  )
  select {new_job_values},
    true, inserted.id, now, now + cast(:delay as float8), now + cast(:expires_in as float8), {key_retained_until},
    least(now + cast(:lease as float8), now + cast(:expires_in as float8)), 'runs after ' || inserted.id, 'queued_next'
  from inserted, given, clock
  where inserted.outcome = 'queued_next' and (select count(*) from expired_next) >= 0 -- which must run first
  on conflict (identity) where queued_next do update set {answer_duplicate}
  returning id, finished_at, outcome, rescheduled, reason, jobs as job
),
forfeited as ( -- room on keys of limits that the new arguments do not have; tokens are given back at the next look
  update onejob.limit_reservations as reservations set until = least(until, now)
  from (select id, outcome from inserted union all select id, outcome from queued) as replaced, clock
  where replaced.outcome = 'replaced' and reservations.job_id = replaced.id and not exists (
    select from json_array_elements(cast(cast(:limit_keys as text) as json)) as given (use)
    where use ->> 0 = reservations.limit_key
  )
),
existing as (
  select id, fingerprint, duplicate_count, outcome from keyed_job
  union all
  select id, fingerprint, duplicate_count, outcome from inserted where outcome <> 'admitted'
),
answer as (
  select id, finished_at, outcome, rescheduled from keyed_job
  union all
  select id, finished_at, outcome, rescheduled from inserted where outcome <> 'queued_next'
  union all
  select id, finished_at, outcome, rescheduled from queued
),
/* charged:
charged as (
  {charge} and exists (select from answer where outcome in ('admitted', 'queued_next'))
),
*/
follower as (
  insert into onejob.jobs as jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
  select {new_job_values},
    answer.id, now, now, case when answer.finished_at is not null then now else now + cast(:lease as float8) end,
    'follows ' || answer.id
  from answer, given, clock
  where cast(:follows as boolean) and answer.id <> :id and answer.outcome <> 'rejected'
  returning id, reason, jobs as job
),
inserted_history as (
  insert into onejob.history ({history_columns})
  select id, 1, now, 'queue_next', 'queued', 0, '', reason from queued, clock where outcome = 'queued_next'
  union all
  select id, 1, now, 'follow', 'queued', 0, '', reason from follower, clock
  union all
  select id, entries, now, 'release_identity', state, attempt, node, release_reason from expired, clock
),
inserted_duplicate as (
  insert into onejob.duplicates as duplicates ({duplicate_columns})
  select
    existing.id, mod(existing.duplicate_count - 1, {duplicate_limit}), now, :nonce, answer.outcome,
    answer.id, :source, :submitter, :host, :fingerprint,
    existing.outcome = 'replaced' or existing.fingerprint <> :fingerprint, answer.rescheduled
  from existing, answer, clock
  {replace_duplicate}
),
counted as (
  select existing.id, existing.duplicate_count, answer.outcome, 1 as number from existing, answer
),
updated_counts as (
  {count_duplicates}
),
{identified},
named as (
  update onejob.jobs as jobs set key_retained_until = greatest(jobs.key_retained_until, now + cast(:key_for as float8))
  from identified, clock
  where jobs.id = identified.id
  returning jobs.id, jobs as job
),
{keep_key},
found_jobs (job, known_role) as (
  select job, null from keyed_job
  union all
  select job, null from inserted where outcome <> 'queued_next'
  union all
  select job, null from queued
  union all
  select job, null from follower
  union all
  select coalesce((select job from named where named.id = jobs.id), jobs),
    case when jobs.id = :id then 'own' else 'followed' end
  from onejob.jobs as jobs
  where id in (select id from own union all select follows_id from own)
  union all
  select jobs, 'keyed' from onejob.jobs where id = (select job_id from keyed) and exists (select from own)
  union all
  select jobs, null from onejob.jobs
  where id = (
    select coalesce((select id from onejob.jobs where id = answered_by), earlier_answer.job_id) from earlier_answer
  )
  /* charged: union all select null::onejob.jobs, null from refusal */
)
select
  case
    /* charged: when id is null then 'exceeded' */
    when known_role is not null then known_role
    when id = :id and outcome = '' then 'follower'
    else 'answer'
  end as role,
  coalesce((select outcome from earlier_answer), outcome /* charged: , (select quota from refusal) */) as outcome,
  coalesce((select rescheduled from earlier_answer), rescheduled) as rescheduled,
  (coalesce((select outcome from earlier_answer), outcome) = 'rejected' or known_role = 'keyed')
    and exists (select from keyed where key_reused and job_id = id) as key_reused,
  found.*
from (select (job).*, known_role from found_jobs) as found
