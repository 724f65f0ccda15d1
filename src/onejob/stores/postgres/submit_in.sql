-- Write a queued job that holds its identity, in the transaction of somebody else, or read which job is in its way: no
-- other job's row is touched, so that nothing waits for that transaction but equal submissions. So a key that another
-- job answers is kept, but no longer than that job. A duplicate that must come to an end under its own id gets a row,
-- whose alarm rings at once: its leader may end before the transaction does, and could not wake what it cannot see.
-- in: the fields of the submission, :wake_in (seconds), :window_over :now; take_keys has run before it
-- out: as submit; nothing when the job in its way cannot be seen yet, and no follower when a row has its id meanwhile
with {clock},
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
  {insert_holder}
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
  select placed.*, 'admitted' as outcome from placed
  union all
  select met.*, case
    when coalesce((select reused from keyed), cast(:rejects as boolean)) then 'rejected'
    when finished_at is not null then 'replayed'
    else 'attached'
  end
  from met
),
follower as (
  insert into onejob.jobs as jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
  select {new_job_values},
    answer.id, now, now, now, 'follows ' || answer.id
  from answer, clock
  where cast(:follows as boolean) and answer.id <> :id and answer.outcome <> 'rejected'
  on conflict do nothing
  returning *
),
noted as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'submit', state, attempt, node, :source from placed, clock
  union all
  select id, entries, now, 'follow', state, attempt, node, reason from follower, clock
  union all
  select id, entries, now, 'release_identity', state, attempt, node, :window_over from expired, clock
),
{keep_key}
select
  'answer' as role, answer.outcome, false as rescheduled,
  exists (select from keyed where reused) as key_reused, answer.*
from answer
union all
select 'follower', null, null, null, follower.* from follower
union all
select 'own', null, null, null, own.* from own
union all
select 'followed', null, null, null, jobs.* from onejob.jobs where id = (select follows_id from own)
