-- name: report
-- Store a run's progress.
-- in: :job_id :token :sources (array) :progress
-- out: the job's cancel; nothing when the token is stale
with {unsynchronized_clock}
update onejob.jobs set progress = :progress from clock
where id = :job_id and token = cast(:token as bigint) and state = any(cast(:sources as text[]))
returning cancel
-- name: keep_step
-- Memoise a step; an earlier value wins. The lock keeps a new run from starting between the read and the write.
-- in: :job_id :token :sources (array) :name :value
-- out: the stored value; nothing when the token is stale
with run as (
  select id from onejob.jobs
  where id = :job_id and token = cast(:token as bigint) and state = any(cast(:sources as text[]))
  for no key update
)
insert into onejob.steps (job_id, name, value)
select id, :name, :value from run
on conflict (job_id, name) do update set value = steps.value
returning value
