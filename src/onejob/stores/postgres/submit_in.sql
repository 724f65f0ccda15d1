-- Write a queued job that holds its identity, in the transaction of somebody else, or read which job is in its way: no
-- other job's row is touched, so that nothing waits for that transaction but equal submissions. So a key that another
-- job answers is kept, but no longer than that job. A duplicate that must come to an end under its own id gets a row,
-- whose alarm rings at once: its leader may end before the transaction does, and could not wake what it cannot see.
-- in: the fields of the submission, :wake_in (seconds), :window_over :now; take_keys has run before it
-- out: as submit; nothing when the job in its way cannot be seen yet, and no follower when a row has its id meanwhile
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
own as (
  select * from onejob.jobs where id = :id
),
keyed as (
  select job_id, fingerprint <> :fingerprint as reused from onejob.keys, clock
  where key = cast(:key as text) and until > now
),
asked as (
  select now from clock where not exists (select from own) and not exists (select from keyed)
),
expired as (
  update onejob.jobs as jobs set holds_identity = false, entries = entries + 1
  from asked
  where identity = :identity and holds_identity and identity_until <= now
  returning jobs.*
),
placed as (
  insert into onejob.jobs (
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
  where (select count(*) from expired) >= 0 -- which has to come first
  on conflict do nothing
  returning *
),
met as (
  select * from onejob.jobs where id = (select job_id from keyed) and not exists (select from own)
  union all
  select * from onejob.jobs
  where identity = :identity and holds_identity and coalesce(identity_until > (select now from asked), true)
    and exists (select from asked) and not exists (select from placed)
),
answer as (
  select *, 'admitted' as came_to from placed
  union all
  select *, case
    when coalesce((select reused from keyed), cast(:rejects as boolean)) then 'rejected'
    when finished_at is not null then 'replayed'
    else 'attached'
  end
  from met
),
follower as (
  insert into onejob.jobs (
    id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, retries, lease, canvas_pending, follows_id,
    created_at, run_at, wake_at, reason
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, cast(:priority_rank as integer),
    cast(:retries as integer), cast(:lease as float8), cast(:canvas as boolean), answer.id,
    now, now, now, 'follows ' || answer.id
  from answer, clock
  where cast(:follows as boolean) and answer.id <> :id and came_to <> 'rejected'
  on conflict do nothing
  returning *
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, entries, now, 'submit', state, attempt, node, :source from placed, clock
  union all
  select id, entries, now, 'follow', state, attempt, node, reason from follower, clock
  union all
  select id, entries, now, 'release_identity', state, attempt, node, :window_over from expired, clock
),
kept as (
  insert into onejob.keys as keys (key, job_id, fingerprint, until)
  select :key, id, :fingerprint, now + cast(:key_for as float8) from answer, clock
  where cast(:key as text) is not null and came_to <> 'rejected' and not exists (select from keyed)
  on conflict (key) do update set job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until
  where keys.until <= (select now from clock)
),
given_back as (
  delete from onejob.keys
  where key = cast(:key as text) and job_id is null and not exists (select from answer where came_to <> 'rejected')
)
select
  'answer' as role, came_to as outcome, false as rescheduled,
  exists (select from keyed where reused) as key_reused, answer.*
from answer
union all
select 'follower', null, null, null, follower.* from follower
union all
select 'own', null, null, null, own.* from own
union all
select 'followed', null, null, null, jobs.* from onejob.jobs where id = (select follows_id from own)
