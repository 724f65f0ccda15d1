-- name: given
-- in: the fields of the submission
given as (select {given_fields})
-- name: given_new
-- in: the fields of the submission, :wake_after (seconds until a sweep looks at a job that is due at once),
--     :is_sent (whether its `published_at` is now, so that neither a sweep nor a worker takes it)
given as (
  select {given_fields}, cast(:wake_after as float8) as wake_after, cast(:is_sent as boolean) as is_sent
)
-- name: given_many
-- in: :submissions (JSON: an array of objects with the same fields), in a quarter of the client's time for arrays
given as (select * from json_to_recordset(cast(:submissions as json)) as given ({given_record}, wake_after float8, is_sent boolean))
-- name: holder_columns
{new_job_columns}, parked_on, holds_identity, created_at, run_at, expires_at, published_at, wake_at, reason
-- name: holder_values
-- in: `given` with its hand-over, now
{new_job_values}, given.parked_on, true, now, now + given.delay, now + given.expires_in,
    case when given.delay <= 0 and given.is_sent then now end,
    least(
      now + case when given.delay > 0 then given.delay else given.wake_after end,
      now + given.expires_in
    ),
    case when given.parked_on is null then 'submitted'
      else 'waits for ' || substr(given.parked_on, length({parked_by_limit}) + 1) end
-- name: insert_given
-- variants: charged
-- in: `given`, `clock`; charged: `exceeded`
insert into onejob.jobs ({holder_columns})
select {holder_values}
from given, clock
/* charged: where not exists (select from exceeded) */
on conflict do nothing
returning id, created_at, {notify_workers}
