-- Write a queued job that holds no identity and waits for the end of another one, its leader: it sleeps until then, or its
-- alarm rings at once when that one has ended. The leader's row is locked, so that its end comes before this or sees
-- it. A transaction of somebody else (:joins) must not hold that row: there the alarm rings at once, too, because the
-- leader may end before that transaction does, and could not wake what it cannot see.
-- in: the fields of the submission, :follows_id :joins :now
-- out: the job, or the row that has its id already; nothing when there is no such leader, or when somebody else is just
--      writing this id
with {clock},
own as (
  select * from onejob.jobs where id = :id
),
held as (
  select id, finished_at from onejob.jobs
  where id = :follows_id and not cast(:joins as boolean) and not exists (select from own)
  for share
),
seen as (
  select id, finished_at from onejob.jobs
  where id = :follows_id and cast(:joins as boolean) and not exists (select from own)
),
followed as (
  select id, finished_at is not null as rings from held
  union all
  select id, true from seen
),
placed as (
  insert into onejob.jobs as jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
  select {new_job_values},
    followed.id, now, now, case when rings then now end, 'waits for the end of ' || followed.id
  from followed, clock
  on conflict (id) do nothing
  returning *
),
noted as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'wait', state, attempt, node, reason from placed, clock
)
select placed.* from placed
union all
select own.* from own
