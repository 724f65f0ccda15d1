-- name: limit_value
-- The value of a key that is valid now: of its own exception, of its name's, or of the definition; nulls without one.
-- in: `used` (key), clock
left join lateral (
    select limits.running, limits.interval, limits.burst from onejob.limits as limits
    where limits.key in (used.key, split_part(used.key, '=', 1))
      and (limits.key = split_part(used.key, '=', 1) or not limits.is_default)
      and (limits.until is null or limits.until > (select now from clock))
    order by limits.is_default, length(limits.key) desc limit 1
  ) as value on true
-- name: is_about_to_run
-- Whether a reservation is valid: its job waits for a run, is parked on nothing, and has the key still.
-- in: `reservations`, now
(reservations.until > now and coalesce((
    select holder.lease_until is null and holder.finished_at is null and coalesce(holder.parked_on, '') = '' and exists (
        select from json_array_elements(cast(holder.limit_keys as json)) as given (use)
        where use ->> 0 = reservations.limit_key
      )
    from onejob.jobs as holder where holder.id = reservations.job_id
  ), false))
-- name: is_leased
-- Whether a slot is taken: its job's run, whose token it has, has a valid lease.
-- in: `slots`, now
coalesce((
    select holder.token = slots.token and holder.lease_until > now
    from onejob.jobs as holder where holder.id = slots.job_id
  ), false)
-- name: is_still_parked
-- Whether a job is parked on something, and waits for a run.
-- in: a job, :parked_on
jobs.parked_on = cast(:parked_on as text) and {waits_for_run}
-- name: is_parked
-- The same, with the condition of the index of the jobs that are parked on something.
-- in: a job, :parked_on
{is_still_parked} and jobs.parked_on <> ''
-- name: uses
-- The keys of a job with their values.
-- in: `waiting` (the job, or no row), clock
uses as (
  select number, used.key, used.weight, value.running, value.interval, value.burst
  from (
    select number, use ->> 0 as key, cast(use ->> 1 as float8) as weight
    from waiting, json_array_elements(cast(waiting.limit_keys as json)) with ordinality as given (use, number)
  ) as used
  {limit_value}
)
-- name: key_states
-- The reservations on some keys, and whether the keys of a job have room for it once those that are no longer valid are
-- forgotten, and their tokens given back. The jobs are read as they were at the beginning of the statement.
-- in: `waiting`, `uses`, `keys` (key), clock
reserved as (
  select reservations.limit_key, reservations.job_id, reservations.weight, {is_about_to_run} as is_valid
  from onejob.limit_reservations as reservations, clock
  where reservations.limit_key = any(array(select key from keys))
),
states as (
  select
    number, key, weight, interval, has_tokens,
    case
      when burst is null or is_reserved then true
      when is_preceded then false
      when running is not null then taken < running
      else greatest(full_at, now) + (least(weight, burst) - burst) * interval <= now
    end as has_room
  from (
    select
      uses.number, uses.key, uses.weight, uses.running, uses.interval, uses.burst, clock.now,
      exists (select from reserved where limit_key = uses.key and job_id = waiting.id and is_valid) as is_reserved,
      exists (select from reserved where limit_key = uses.key and job_id = waiting.id and is_valid and weight > 0)
        as has_tokens,
      coalesce((
        select (-jobs.priority_rank, jobs.created_at, jobs.id) < (-waiting.priority_rank, waiting.created_at, waiting.id)
        from onejob.jobs as jobs
        where jobs.parked_on = {parked_by_limit} || uses.key and jobs.parked_on <> '' and {waits_for_run}
        order by jobs.priority_rank desc, jobs.created_at, jobs.id limit 1
      ), false) as is_preceded,
      case when uses.running is not null then
        (select count(*) from reserved where limit_key = uses.key and is_valid) + (
          select count(*) from onejob.limit_slots as slots where slots.limit_key = uses.key and {is_leased}
        )
      end as taken,
      case when returned > 0 then greatest(rates.full_at, clock.now) - returned * uses.interval else rates.full_at end
        as full_at
    from waiting cross join clock cross join uses
    cross join lateral (
      select coalesce(sum(weight), 0) as returned from reserved where limit_key = uses.key and not is_valid
    ) as ended
    left join onejob.limit_rates as rates on rates.key = uses.key
  ) as found
)
-- name: forget_slots
-- Delete the slots of keys whose runs are over, or lost.
-- in: `looked` (key), clock
delete from onejob.limit_slots as slots using clock
  where slots.limit_key = any(array(select key from looked)) and not {is_leased}
-- name: move_full_at
-- Give tokens of rates back, and then take others. Some rows of buckets that have been full for an hour are deleted.
-- in: `changes` (key, back, taken: weights), clock
moved as (
  insert into onejob.limit_rates as rates (key, full_at)
  select key, case when taken > 0 then greatest(left_at, now) + taken * interval else left_at end
  from (
    select used.key, used.taken, value.interval, clock.now,
      case when used.back > 0 then greatest(kept.full_at, clock.now) - used.back * value.interval else kept.full_at end
        as left_at
    from changes as used
    {limit_value}
    left join onejob.limit_rates as kept on kept.key = used.key
    cross join clock
    where value.interval is not null and used.back + used.taken > 0
  ) as changed
  on conflict (key) do update set full_at = excluded.full_at
),
deleted_rates as (
  delete from onejob.limit_rates where key = any(array(
    select key from onejob.limit_rates
    where alarm is null and full_at <= (select now from clock) - 3600
      and key <> all(array(select key from changes))
    order by full_at limit 2
    for update skip locked
  ))
)
-- name: holders
-- The jobs that have room on a key: those that are about to run, and those that have one of its slots.
-- in: `used` (key), `value`, clock
select reservations.job_id from onejob.limit_reservations as reservations
        where reservations.limit_key = used.key and {is_about_to_run}
        union all
        select slots.job_id from onejob.limit_slots as slots
        where slots.limit_key = used.key and value.interval is null and {is_leased}
-- name: key_uses
-- What keys are used for.
-- in: `used` (key, waiting), :listed (how many holders are listed), clock
select
  used.key, used.waiting,
  (
    select coalesce(json_agg(job_id), '[]')::text from (
      select job_id from (
        {holders}
      ) as found
      order by job_id collate "C" limit cast(:listed as bigint)
    ) as listed
  ) as holders
from used
  {limit_value}
  cross join clock
