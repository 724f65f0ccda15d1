-- Delete jobs with everything that belongs to them, insert their tombstones, and delete expired tombstones.
-- in: :job_ids :sources (arrays) :skip_keyed :tombstone_for (seconds; 0 for none) :now
-- out: the ids of the deleted jobs: in one of the states, and not holding their identity; with :skip_keyed only those
--      to which no idempotency key points, and whose rows are not locked: the former become due when their last key
--      expires, and the latter stay until the next call
with {clock},
unlocked as (
  select id, key_retained_until from onejob.jobs
  where cast(:skip_keyed as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
  for update skip locked
),
locked as (
  select id, null::float8 as key_retained_until from onejob.jobs
  where not cast(:skip_keyed as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
  for update
),
candidates as (
  select * from unlocked
  union all
  select * from locked
),
postponed as (
  update onejob.jobs as jobs set wake_at = candidates.key_retained_until
  from candidates, clock
  where jobs.id = candidates.id and candidates.key_retained_until > now
),
deleted as (
  delete from onejob.jobs using candidates, clock
  where jobs.id = candidates.id and not coalesce(candidates.key_retained_until > now, false)
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
