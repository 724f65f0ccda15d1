-- name: limit_values
-- out: all values, the definition of a name before its exception
select key, is_default, running, rate, interval, burst, until from onejob.limits
order by key collate "C", is_default desc
-- name: put_limit
-- Write a value in place of the value with the same key and is_default.
-- in: the fields of the value
insert into onejob.limits (key, is_default, running, rate, interval, burst, until)
values (
  :key, cast(:is_default as boolean), cast(:running as integer), :rate, cast(:interval as float8),
  cast(:burst as float8), cast(:until as float8)
)
on conflict (key, is_default) do update set
  running = excluded.running, rate = excluded.rate, interval = excluded.interval, burst = excluded.burst,
  until = excluded.until
-- name: delete_limit
-- in: :key
delete from onejob.limits where key = :key and not is_default
-- name: lock_key
-- Let the statements that follow in the transaction look for room on one key alone, as `lock_limits` does on all keys.
-- in: :key :due_channel
select pg_advisory_xact_lock_shared(hashtextextended('onejob limits ' || cast(:due_channel as text), 0)),
  pg_advisory_xact_lock(hashtextextended('onejob limit ' || cast(:due_channel as text) || ' ' || cast(:key as text), 0))
-- name: lock_limits
-- Let the statements that follow in the transaction look for room alone: one after the other, each sees what the one
-- before has written. The name of a channel is the ledger's own.
-- in: :due_channel
select from pg_advisory_xact_lock(hashtextextended('onejob limits ' || cast(:due_channel as text), 0))
-- name: is_waited_for
-- Slots that are taken need no look with the lock of the key: each of their ends is followed by a look, which finds the
-- jobs that are parked by now.
-- in: :key :parked_on (the same key) :now
-- out: a row if jobs are parked on the key that may have "room": for at most so many; null if that is not known, since the
--      key has no slots, or some of the first jobs are due later, or have other keys by now. Also if it has an alarm.
with {clock},
used as (
  select cast(:key as text) as key
),
slots as (
  select value.running - (select count(*) from ({holders}) as holders) as room
  from used
  {limit_value}
  cross join clock
),
first as (
  select run_at <= (select now from clock) and exists (
      select from json_array_elements(cast(limit_keys as json)) as given (use) where use ->> 0 = cast(:key as text)
    ) as waits_here
  from onejob.jobs where {is_parked}
  order by priority_rank desc, created_at, id limit (select coalesce(greatest(room, 0), 0) + 1 from slots)
)
select case when all_wait_here and not has_alarm then room end as room
from (
  select
    (select room from slots) as room, bool_and(waits_here) as all_wait_here,
    exists (select from onejob.limit_rates where key = :key and alarm is not null) as has_alarm
  from first
) as found
where has_alarm or not all_wait_here or (all_wait_here and coalesce(room > 0, true))
-- name: free_slot
-- Make the first job that is parked on a key due, if all its keys have room: it has that room for one lease. Otherwise
-- park it on another key that is full, or change nothing if this one is. A job that is due later is parked no longer.
-- lock_key or lock_limits ran before.
-- in: :key :parked_on (the same key) :is_swept (a sweep takes the job at once) :is_sent :is_offered (of the hand-over)
--     :is_alone (whether lock_limits ran) :due_channel :now
-- out: the "effect" (full, freed, moved, later; several: it has other keys, and changes only after lock_limits; changed:
--      by somebody else, meanwhile), the key to which the job was "moved_to", and the job, unless it is unchanged;
--      nothing if no job is parked there
with {unsynchronized_clock},
first as (
  select id from onejob.jobs where {is_parked} order by priority_rank desc, created_at, id limit 1
),
parked as ( -- locked, and the newest version
  select * from onejob.jobs where id = (select id from first) and {is_still_parked} for no key update
),
waiting as (
  select parked.* from parked, clock where run_at <= now
),
{uses},
keys as (
  select key from uses union select cast(:key as text)
),
{key_states},
blocking as (
  select key, number from states where not has_room order by key <> cast(:key as text), number limit 1
),
decided as (
  select parked.id, blocking.key, case
      when parked.run_at > now then 'later'
      when not cast(:is_alone as boolean) and exists (select from uses where key <> cast(:key as text)) then 'several'
      when blocking.key = cast(:key as text) then 'full'
      when blocking.key is not null then 'moved'
      else 'freed'
    end as effect
  from parked cross join clock left join blocking on true
),
looked as (
  select cast(:key as text) as key
  union
  select states.key from states, decided
  where effect = 'freed' or (effect = 'moved' and number <= (select number from blocking))
),
changed as (
  update onejob.jobs as jobs set
    parked_on = case effect when 'moved' then {parked_by_limit} || decided.key end,
    reason = case effect
      when 'moved' then 'waits for ' || decided.key
      when 'freed' then 'has room on ' || cast(:key as text)
      else jobs.reason
    end,
    run_at = case effect when 'freed' then now else jobs.run_at end,
    published_at = case effect
      when 'moved' then jobs.published_at
      when 'freed' then
        case when cast(:is_sent as boolean) or (cast(:is_offered as boolean) and not {is_plain}) then now end
    end,
    wake_at = case effect
      when 'moved' then jobs.wake_at
      when 'later' then least(jobs.run_at, jobs.expires_at)
      else least(case when cast(:is_swept as boolean) then now else now + jobs.lease end, jobs.expires_at)
    end
  from decided, clock
  where jobs.id = decided.id and effect not in ('full', 'several')
  returning jobs.*, case when effect <> 'moved' then {notify_workers} end
),
released as (
  select limit_key, job_id, weight from reserved where not is_valid and limit_key in (select key from looked)
),
granted as (
  insert into onejob.limit_reservations as reservations (limit_key, job_id, until, weight)
  select distinct on (uses.key)
    uses.key, changed.id, now + changed.lease, case when uses.interval is null then 0 else uses.weight end
  from uses, changed, decided, clock
  where decided.effect = 'freed'
  on conflict (limit_key, job_id) do update set until = excluded.until, weight = excluded.weight
),
deleted as (
  delete from onejob.limit_reservations as reservations using released
  where reservations.limit_key = released.limit_key and reservations.job_id = released.job_id
    and not exists ( -- which is written anew
      select from uses, decided
      where effect = 'freed' and decided.id = released.job_id and uses.key = released.limit_key
    )
),
deleted_reservations as ( -- some that nobody has looked at for an hour: their jobs were deleted
  delete from onejob.limit_reservations as reservations using (
    select limit_key, job_id from onejob.limit_reservations
    where until <= (select now from clock) - 3600 and limit_key <> all(array(select key from keys))
    order by until limit 2
    for update skip locked
  ) as old
  where reservations.limit_key = old.limit_key and reservations.job_id = old.job_id
),
forgotten as (
  {forget_slots}
),
changes as (
  select key, sum(back) as back, sum(taken) as taken
  from (
    select limit_key as key, weight as back, 0 as taken from released
    union all
    select states.key, 0, weight from states, decided where effect = 'freed' and interval is not null
  ) as weights
  group by key
),
{move_full_at}
select coalesce(decided.effect, 'changed') as effect, decided.key as moved_to, changed.*
from first left join decided on true left join changed on true
-- name: forfeit_room
-- End the room of a job that is about to run, if `apply` has applied the request: its tokens are given back when a key is
-- looked at.
-- in: :job_id :request_id :now
with {clock}
update onejob.limit_reservations set until = least(until, now) from clock
where job_id = :job_id and current_setting('ledger.applied_request', true) = :request_id
-- name: look_at
-- Forget the reservations on a key that are no longer valid, and give their tokens back.
-- in: :key :now; lock_key ran before
with {unsynchronized_clock},
released as (
  delete from onejob.limit_reservations as reservations using clock
  where reservations.limit_key = cast(:key as text) and not {is_about_to_run}
  returning reservations.limit_key as key, reservations.weight
),
changes as (
  select key, sum(weight) as back, 0 as taken from released group by key
),
{move_full_at}
select from released
-- name: set_alarm
-- Set the alarm of a rate to the time at which the first parked job has enough tokens.
-- in: :key :parked_on (the same key) :now; lock_key or lock_limits ran before
with {unsynchronized_clock},
first as (
  select limit_keys from onejob.jobs where {is_parked} order by priority_rank desc, created_at, id limit 1
),
used as (
  select cast(:key as text) as key, coalesce((
      select cast(use ->> 1 as float8) from json_array_elements(cast(first.limit_keys as json)) as given (use)
      where use ->> 0 = cast(:key as text) limit 1
    ), 1) as weight
  from first
),
alarm as (
  select used.key, greatest(rates.full_at, now) + (least(used.weight, value.burst) - value.burst) * value.interval as at
  from used
  {limit_value}
  left join onejob.limit_rates as rates on rates.key = used.key
  cross join clock
  where value.interval is not null
),
cleared as (
  update onejob.limit_rates set alarm = null
  where key = :key and alarm is not null and not exists (select from alarm)
)
insert into onejob.limit_rates as rates (key, full_at, alarm)
select key, now, at from alarm, clock
on conflict (key) do update set alarm = excluded.alarm where rates.alarm is distinct from excluded.alarm
-- name: take_alarms
-- Move the alarms that are due by a second.
-- in: :now
-- out: their keys
with {unsynchronized_clock}
update onejob.limit_rates set alarm = now + 1 from clock where alarm <= now
returning key
-- name: next_alarm
-- in: :now
-- out: the seconds to the next alarm; null without one
with {clock}
select min(alarm) - (select now from clock) as seconds from onejob.limit_rates where alarm is not null
-- name: spend
-- Take tokens of the rate of a key; a negative amount is given back.
-- in: :key :amount :now; look_at ran before
with {clock},
used as (
  select cast(:key as text) as key
)
insert into onejob.limit_rates as rates (key, full_at)
select used.key, greatest(kept.full_at, now) + cast(:amount as float8) * value.interval
from used
  {limit_value}
  left join onejob.limit_rates as kept on kept.key = used.key
  cross join clock
where value.interval is not null
on conflict (key) do update set full_at = excluded.full_at
-- name: limit_use
-- in: :key :parked_on (the same key) :listed :now
-- out: key, waiting and holders (JSON array)
with {clock},
used as (
  select cast(:key as text) as key, (select count(*) from onejob.jobs where {is_parked}) as waiting
)
{key_uses}
-- name: limit_uses
-- in: :limit :listed :now
-- out: as limit_use, of the keys for which most jobs wait
with {clock},
used as (
  select substr(parked_on, length({parked_by_limit}) + 1) as key, count(*) as waiting from onejob.jobs
  where parked_on <> '' and left(parked_on, length({parked_by_limit})) = {parked_by_limit} and {waits_for_run}
  group by parked_on
  order by waiting desc, parked_on collate "C" limit cast(:limit as bigint)
)
{key_uses}
order by used.waiting desc, used.key collate "C"
-- name: parked_before
-- in: :parked_on :priority_rank :created_at :id
-- out: how many jobs are parked there that come before such a job
select
  (select count(*) from onejob.jobs where {is_parked} and priority_rank > cast(:priority_rank as integer))
  + (
    select count(*) from onejob.jobs
    where {is_parked} and priority_rank = cast(:priority_rank as integer)
      and (created_at, id) < (cast(:created_at as float8), cast(:id as text))
  ) as number
