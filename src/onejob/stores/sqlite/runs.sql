-- name: renew
-- Extend many leases. That of a job with limits is not extended after its end: another job may have got its slot.
-- in: :claims (JSON array of [job id, nonce]) :sources :now
-- out: id, claim and cancel of every job whose lease was extended
update jobs set lease_until = :now + lease, wake_at = :now + lease
where {in_sources}
  and (id, claim) in (select value ->> 0, value ->> 1 from json_each(:claims))
  and (limit_keys is null or lease_until > :now)
returning id, claim, cancel
-- name: report
-- Store a run's progress.
-- in: :job_id :token :sources :progress
-- out: the job's cancel; nothing when the token is stale
update jobs set progress = :progress
where id = :job_id and token = :token and {in_sources}
returning cancel
-- name: keep_step
-- Memoise a step; an earlier value wins.
-- in: :job_id :token :sources :name :value
-- out: the stored value; nothing when the token is stale
insert into steps (job_id, name, value)
select id, :name, :value from jobs
where id = :job_id and token = :token and {in_sources}
on conflict (job_id, name) do update set value = steps.value
returning value
-- name: delete_steps
-- in: :job_id
delete from steps where job_id = :job_id
-- name: postpone
-- Set wake_at of jobs that wait for a run, or whose canvas waits.
-- in: :wake_after (JSON: seconds by id) :taken (JSON: wake_at as it was seen, by id) :lost (only published jobs that may run and are not parked, which a sweep has to publish again) :now
update jobs set
  wake_at = min(:now + given.value, iif(finished_at is null, coalesce(expires_at, 9e999), 9e999)),
  published_at = iif(:lost, null, published_at)
from json_each(:wake_after) as given left join json_each(:taken) as seen on seen.key = given.key
where jobs.id = given.key and {is_waiting} and not (:lost and (published_at is null or run_at > :now or coalesce(parked_on, '') <> ''))
  and coalesce(abs(wake_at - seen.value) < 0.001, 1)
