-- Write a queued job that holds its identity, in a user's transaction, or read the existing job. No other job's row is
-- locked, so that only equal submissions wait for that transaction; therefore a key that an existing job answers is not
-- retained longer than that job. With :follows a duplicate gets a row of its own, as a follower, which is due at once:
-- the followed job may end before the commit, and its end cannot see uncommitted rows.
-- variants: charged
-- in: the fields of the submission, :wake_after (seconds) :is_sent, :now; take_keys ran before
-- out: as submit, over a quota also when an equal job is not visible yet; nothing when the existing job is not visible yet, and no follower when another row got its id
--      meanwhile
with {clock},
{given_new},
own as (
  select * from onejob.jobs where id = :id
),
keyed as (
  select job_id, fingerprint <> :fingerprint as key_reused from onejob.keys, clock
  where key = cast(:key as text) and until > now
),
new_request as (
  select now from clock where not exists (select from own) and not exists (select from keyed)
),
/* charged: {quotas}, */
expired as (
  update onejob.jobs as jobs set holds_identity = false, entries = entries + 1
  from new_request
  where identity = :identity and holds_identity and {held_until} <= now
  returning jobs.*, {release_reason} as release_reason
),
inserted as (
  insert into onejob.jobs ({holder_columns}, key_retained_until)
  select {holder_values}, {key_retained_until}
  from given, new_request
  where (select count(*) from expired) >= 0 -- which must run first
    /* charged: and not exists (select from exceeded) */
  on conflict do nothing
  returning *, {notify_workers}
),
existing as (
  select * from onejob.jobs where id = (select job_id from keyed) and not exists (select from own)
  union all
  select * from onejob.jobs
  where identity = :identity and holds_identity and coalesce({held_until} > (select now from new_request), true)
    and exists (select from new_request) and not exists (select from inserted)
),
answer as (
  select inserted.*, 'admitted' as outcome from inserted
  union all
  select existing.*, case
    when coalesce((select key_reused from keyed), cast(:rejects as boolean)) then 'rejected'
    when finished_at is not null then 'replayed'
    else 'attached'
  end
  from existing
),
/* charged:
charged as (
  {charge} and exists (select from inserted)
),
*/
follower as (
  insert into onejob.jobs as jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
  select {new_job_values},
    answer.id, now, now, now, 'follows ' || answer.id
  from answer, given, clock
  where cast(:follows as boolean) and answer.id <> :id and answer.outcome <> 'rejected'
  on conflict do nothing
  returning *
),
inserted_history as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'follow', state, attempt, node, reason from follower, clock
  union all
  select id, entries, now, 'release_identity', state, attempt, node, release_reason from expired, clock
),
{identified},
named as (
  select id from identified
),
{keep_key}
select
  'answer' as role, answer.outcome, false as rescheduled,
  exists (select from keyed where key_reused) as key_reused, answer.*
from answer
union all
select 'follower', null, null, null, follower.* from follower
union all
select 'own', null, null, null, own.* from own
union all
select 'followed', null, null, null, jobs.* from onejob.jobs where id = (select follows_id from own)
union all
select 'keyed', null, null, key_reused, jobs.* from onejob.jobs join keyed on id = job_id where exists (select from own)
/* charged:
union all
select 'exceeded', quota, null, null, jobs.* from exceeded left join onejob.jobs on false
where not exists (select from answer) and not exists (select from own)
*/
