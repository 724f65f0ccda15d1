-- Delete jobs with everything that belongs to them, insert their tombstones, and delete expired tombstones.
-- in: :job_ids :sources (arrays) :skip_referenced :tombstone_for (seconds; 0 for none) :now
-- out: the ids of the deleted jobs: in one of the states, and not holding their identity; with :skip_referenced only
--      those to which no idempotency key and no unfinished follower points, and whose rows are not locked. The former
--      become due when their last key expires, or when the time since their end has doubled; the latter stay until the
--      next call
with {clock},
unlocked as (
  select id, greatest(
    case when key_retained_until > now then key_retained_until end,
    case when exists (select from onejob.jobs as follower where follower.follows_id = jobs.id and follower.finished_at is null)
      then now + greatest(now - jobs.finished_at, jobs.lease) end
  ) as referenced_until
  from onejob.jobs, clock
  where cast(:skip_referenced as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
  for update of jobs skip locked
),
locked as (
  select id, null::float8 as referenced_until from onejob.jobs
  where not cast(:skip_referenced as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
  for update
),
candidates as (
  select * from unlocked
  union all
  select * from locked
),
postponed as (
  update onejob.jobs as jobs set wake_at = referenced_until from candidates
  where jobs.id = candidates.id and referenced_until is not null
),
deleted as (
  delete from onejob.jobs using candidates
  where jobs.id = candidates.id and referenced_until is null
  returning jobs.id, jobs.state, jobs.finished_at
),
inserted_tombstones as (
  insert into onejob.tombstones (id, state, finished_at, purged_at, until)
  select id, state, finished_at, now, now + cast(:tombstone_for as float8) from deleted, clock
  where finished_at is not null and cast(:tombstone_for as float8) > 0
  on conflict (id) do update set (state, finished_at, purged_at, until) = row (
    excluded.state, excluded.finished_at, excluded.purged_at, excluded.until
  )
),
deleted_tombstones as (
  delete from onejob.tombstones
  where id = any(array(
    select id from onejob.tombstones
    where until <= (select now from clock) and id <> all(cast(:job_ids as text[])) -- the insert may update these
    order by until
    limit 2 * cardinality(cast(:job_ids as text[]))
    for update skip locked
  ))
)
select id from deleted
