-- Write a follower: a queued job that holds no identity and ends as another job ends, which makes it due; if the
-- followed job has ended already, it is due at once. The followed row is written (unchanged), so that its end commits
-- before this statement or sees the follower, and so that an end in a user's transaction with an older snapshot
-- (REPEATABLE READ) fails instead of missing it. A user's transaction (:joins) must not lock that row: there the follower
-- is due at once, too, because the followed job may end before the commit, and its end cannot see uncommitted rows.
-- variants: charged
-- in: the fields of the submission, :follows_id :joins :now
-- out: the job, or the row that has its id already; nothing when the followed job does not exist, or when a concurrent
--      transaction is writing this id. With :charges the "quota" that a new follower would exceed
with {clock},
{given},
own as (
  select * from onejob.jobs where id = :id
),
locked as (
  update onejob.jobs set entries = entries
  where id = :follows_id and not cast(:joins as boolean) and not exists (select from own)
  returning id, finished_at
),
unlocked as (
  select id, finished_at from onejob.jobs
  where id = :follows_id and cast(:joins as boolean) and not exists (select from own)
),
followed as (
  select id, finished_at is not null as is_due from locked
  union all
  select id, true from unlocked
),
/* charged: {quotas}, */
inserted as (
  insert into onejob.jobs as jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
  select {new_job_values},
    followed.id, now, now, case when is_due then now else now + cast(:lease as float8) end, 'waits for the end of ' || followed.id
  from followed, given, clock
  /* charged: where not exists (select from exceeded) */
  on conflict (id) do nothing
  returning *
),
inserted_history as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'wait', state, attempt, node, reason from inserted, clock
)
/* charged: , charged as ({charge} and exists (select from inserted)) */
select /* charged: null as quota, */ inserted.* from inserted
union all
select /* charged: null, */ own.* from own
/* charged: union all select quota, jobs.* from exceeded, followed left join onejob.jobs on false */
