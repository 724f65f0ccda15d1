-- name: is_about_to_run
-- Whether a reservation is valid: its job waits for a run, and is parked on nothing.
-- in: a reservation, :now
limit_reservations.until > :now and exists (
    select 1 from jobs where id = limit_reservations.job_id and lease_until is null and finished_at is null
      and coalesce(parked_on, '') = ''
  )
-- name: is_parked
-- The condition of the index of the jobs that are parked on something, and those of them that wait for a run.
-- in: a job, :parked_on
parked_on = :parked_on and parked_on <> '' and lease_until is null and finished_at is null
-- name: is_rate
-- Whether the value of a key that is valid now is a rate.
-- in: `used` (key, name), :now
coalesce((
    select running is null from limits
    where limits.key in (used.key, used.name) and (limits.key = used.name or not is_default)
      and (until is null or until > :now)
    order by is_default, length(limits.key) desc limit 1
  ), 0)
-- name: key_uses
-- What keys are used for.
-- in: `used` (key, name, waiting), :listed (how many holders are listed) :now
select
  key, waiting,
  (
    select json_group_array(job_id) from (
      select job_id from limit_reservations where limit_key = used.key and {is_about_to_run}
      union all
      select job_id from limit_slots join jobs on jobs.id = job_id
      where limit_key = used.key and jobs.token = limit_slots.token and lease_until > :now and not is_rate
      order by job_id limit :listed
    )
  ) as holders
from (select *, {is_rate} as is_rate from used) as used
