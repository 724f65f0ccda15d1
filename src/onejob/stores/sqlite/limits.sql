-- name: limit_values
-- out: all values, the definition of a name before its exception
select key, is_default, running, rate, interval, burst, until from limits order by key, is_default desc
-- name: put_limit
-- Write a value in place of the value with the same key and is_default.
-- in: the fields of the value
insert into limits (key, is_default, running, rate, interval, burst, until)
values (:key, :is_default, :running, :rate, :interval, :burst, :until)
on conflict (key, is_default) do update set
  running = excluded.running, rate = excluded.rate, interval = excluded.interval, burst = excluded.burst,
  until = excluded.until
-- name: delete_limit
-- in: :key
delete from limits where key = :key and not is_default
-- name: limit_value
-- in: :key :name (of the limit of the key) :now
-- out: the value of the key that is valid now: of its own exception, of its name's, or of the definition; or nothing
select key, is_default, running, rate, interval, burst, until from limits
where key in (:key, :name) and (key = :name or not is_default) and (until is null or until > :now)
order by is_default, length(key) desc limit 1
-- name: forget_slots
-- Delete the slots of a key whose runs are over, or lost.
-- in: :key :now
delete from limit_slots
where limit_key = :key and not exists (
  select 1 from jobs where id = limit_slots.job_id and jobs.token = limit_slots.token and lease_until > :now
)
-- name: forget_reservations
-- Delete the reservations on a key that are no longer valid.
-- in: :key :now
-- out: the weight of each, whose tokens are to be given back
delete from limit_reservations where limit_key = :key and not ({is_about_to_run})
returning weight
-- name: forfeit_room
-- End the room of a job that is about to run, except on some keys: its tokens are given back when a key is looked at.
-- in: :job_id :kept (JSON array of keys) :now
update limit_reservations set until = min(until, :now)
where job_id = :job_id and limit_key not in (select value from json_each(:kept))
-- name: delete_reservations
-- Delete some reservations that nobody has looked at for an hour: their jobs were deleted.
-- in: :now
delete from limit_reservations where (limit_key, job_id) in (
  select limit_key, job_id from limit_reservations where until <= :now - 3600 order by until limit 2
)
-- name: key_state
-- in: :key :job_id :now; forget_reservations ran before
-- out: whether the job has room on the key, how many slots are taken, and when its bucket is full (null: it is)
select
  exists (select 1 from limit_reservations where limit_key = :key and job_id = :job_id) as is_reserved,
  (select count(*) from limit_reservations where limit_key = :key) + (
    select count(*) from limit_slots join jobs on jobs.id = job_id
    where limit_key = :key and jobs.token = limit_slots.token and lease_until > :now
  ) as taken,
  (select full_at from limit_rates where key = :key) as full_at
-- name: move_full_at
-- Take tokens of a rate; a negative number of seconds gives some back.
-- in: :key :seconds (in which the rate permits as much) :now
insert into limit_rates (key, full_at) values (:key, :now + :seconds)
on conflict (key) do update set full_at = max(full_at, :now) + :seconds
-- name: delete_rates
-- Delete some rows of buckets that have been full for an hour.
-- in: :now
delete from limit_rates where key in (
  select key from limit_rates where alarm is null and full_at <= :now - 3600 order by full_at limit 2
)
-- name: take_slot
-- in: :key :job_id :token (of the run)
insert into limit_slots (limit_key, job_id, token) values (:key, :job_id, :token)
on conflict (limit_key, job_id) do update set token = excluded.token
-- name: reserve
-- in: :key :job_id :until :weight (of the tokens that the job has got; 0: it has a slot)
insert into limit_reservations (limit_key, job_id, until, weight) values (:key, :job_id, :until, :weight)
on conflict (limit_key, job_id) do update set until = excluded.until, weight = excluded.weight
-- name: use_reservation
-- in: :key :job_id
-- out: the weight of the tokens that the job has got; nothing without a reservation
delete from limit_reservations where limit_key = :key and job_id = :job_id
returning weight
-- name: release_reservations
-- in: :job_id
-- out: limit_key and weight of each
delete from limit_reservations where job_id = :job_id
returning limit_key, weight
-- name: is_waited_for
-- in: :key :parked_on (the same key)
-- out: a row if jobs are parked on the key, or if it has an alarm; its "room" is null: that is not known
select null as room where exists (select 1 from jobs where {is_parked})
  or exists (select 1 from limit_rates where key = :key and alarm is not null)
-- name: first_parked
-- in: :parked_on
-- out: the first job that is parked there, or nothing
select {job_columns} from jobs where {is_parked} order by priority_rank desc, created_at, id limit 1
-- name: parked_before
-- in: :parked_on :priority_rank :created_at :id
-- out: how many jobs are parked there that come before such a job
select
  (select count(*) from jobs where {is_parked} and priority_rank > :priority_rank)
  + (
    select count(*) from jobs
    where {is_parked} and priority_rank = :priority_rank and (created_at, id) < (:created_at, :id)
  ) as number
-- name: park_on_key
-- Park a job whose claim is refused.
-- in: :job_id :parked_on :reason :now
-- out: the job
update jobs set
  parked_on = :parked_on,
  published_at = :now,
  wake_at = min(:now + {parked_seconds}, coalesce(expires_at, 9e999)),
  reason = :reason
where id = :job_id
returning {job_columns}
-- name: park_elsewhere
-- Park a job on another key instead.
-- in: :job_id :parked_on :reason
update jobs set parked_on = :parked_on, reason = :reason where id = :job_id
-- name: unpark_one
-- Make a parked job due, now or later.
-- in: :job_id :run_at :wake_at :published_at :reason (null: unchanged)
-- out: the job
update jobs set
  parked_on = null,
  run_at = :run_at,
  published_at = :published_at,
  wake_at = min(:wake_at, coalesce(expires_at, 9e999)),
  reason = coalesce(:reason, reason)
where id = :job_id
returning {job_columns}
-- name: set_alarm
-- in: :key :alarm (null: none) :now
insert into limit_rates (key, full_at, alarm) select :key, :now, :alarm where :alarm is not null
on conflict (key) do update set alarm = excluded.alarm
-- name: clear_alarm
-- in: :key
update limit_rates set alarm = null where key = :key and alarm is not null
-- name: take_alarms
-- Move the alarms that are due by a second.
-- in: :now
-- out: their keys
update limit_rates set alarm = :now + 1 where alarm <= :now
returning key
-- name: next_alarm
-- in: :now
-- out: the seconds to the next alarm; null without one
select min(alarm) - :now as seconds from limit_rates where alarm is not null
-- name: limit_use
-- in: :key :name :parked_on :listed :now
-- out: key, waiting and holders (JSON array)
with used as (select :key as key, :name as name, (select count(*) from jobs where {is_parked}) as waiting)
{key_uses}
-- name: limit_uses
-- in: :limit :listed :now
-- out: as limit_use, of the keys for which most jobs wait
with parked as (
  select substr(parked_on, length({parked_by_limit}) + 1) as key, count(*) as waiting from jobs
  where parked_on <> '' and parked_on >= {parked_by_limit} and parked_on < {parked_by_limit} || char(1114111)
    and lease_until is null and finished_at is null
  group by parked_on
  order by waiting desc, key limit :limit
),
used as (select key, substr(key, 1, instr(key || '=', '=') - 1) as name, waiting from parked)
{key_uses}
order by waiting desc, key
