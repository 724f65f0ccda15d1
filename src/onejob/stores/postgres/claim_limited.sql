-- Start a run of a job with limits, as `claim_again` does, if all its keys have room, and take that room: slots, or the
-- tokens unless the job has got them. Otherwise park the job on the first key that is full; its room on other keys is free
-- again. lock_key ran before, or lock_limits for a job with several keys.
-- in: :job_id :nonce :node :sources (array) :target :limit_keys (as they were read before the lock; a job that has others
--     by now is refused) :now
-- out: as `claim`
with {unsynchronized_clock},
jobs as (
  select * from onejob.jobs where id = :job_id for no key update
),
waiting as (
  select jobs.* from jobs, clock where {is_claimable} and jobs.limit_keys = cast(:limit_keys as text)
),
{uses},
keys as (
  select key from uses
),
{key_states},
blocking as (
  select key, number from states where not has_room order by number limit 1
),
looked as (
  select key from states where number <= coalesce((select number from blocking), number)
),
claimed as (
  update onejob.jobs as claimed set
    {start_run},
    entries = jobs.entries + (jobs.attempt > 0)::integer
  from jobs, clock
  where claimed.id = jobs.id and exists (select from waiting) and not exists (select from blocking)
  returning claimed.*
),
parked as (
  update onejob.jobs as parked set
    parked_on = {parked_by_limit} || blocking.key,
    published_at = now,
    wake_at = least(now + {parked_seconds}, jobs.expires_at),
    reason = 'waits for ' || blocking.key,
    entries = jobs.entries + 1
  from jobs, blocking, clock
  where parked.id = jobs.id and jobs.parked_on is distinct from {parked_by_limit} || blocking.key
  returning parked.*
),
released as ( -- the reservations whose tokens are given back
  select limit_key, job_id, weight from reserved where not is_valid and limit_key in (select key from looked)
  union
  select limit_key, job_id, weight from onejob.limit_reservations
  where job_id = :job_id and exists (select from parked)
),
deleted as (
  delete from onejob.limit_reservations as reservations
  using (select limit_key, job_id from released union select uses.key, claimed.id from uses, claimed) as ended
  where reservations.limit_key = ended.limit_key and reservations.job_id = ended.job_id
),
taken as (
  insert into onejob.limit_slots as slots (limit_key, job_id, token)
  select distinct uses.key, claimed.id, claimed.token from uses, claimed where uses.interval is null
  on conflict (limit_key, job_id) do update set token = excluded.token
),
forgotten as (
  {forget_slots} and slots.job_id <> :job_id
),
changes as (
  select key, sum(back) as back, sum(taken) as taken
  from (
    select limit_key as key, weight as back, 0 as taken from released
    union all
    select states.key, 0, weight from states
    where interval is not null and not has_tokens and exists (select from claimed)
  ) as weights
  group by key
),
{move_full_at},
inserted_history as (
  {insert_last_claim}
  union all
  select id, entries, now, 'park', state, attempt, node, reason from parked, clock
),
trimmed_history as (
  delete from onejob.history using (select id, entries from claimed union all select id, entries from parked) as written
  where job_id = written.id and written.entries > {history_limit} and seq <= written.entries - {history_limit}
)
select true as applied, claimed.* from claimed
union all
select false, parked.* from parked
union all
select claim = :nonce and state = :target, jobs.* from jobs
where not exists (select from claimed) and not exists (select from parked)
