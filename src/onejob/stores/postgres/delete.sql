-- Remove jobs with all that belongs to them, remember what had come of them, and forget that of others.
-- in: :job_ids :sources (arrays) :skip_keyed :tombstone_for (seconds; 0 for none) :now
-- out: the ids of the jobs that were removed: in one of the states, and not holding their identity; with :skip_keyed only
--      those to which no idempotency key points, and which nobody is just writing: the alarms of the former ring when
--      their last key is forgotten, and the latter are left for another time
with {clock},
at_rest as (
  select id, key_retained_until from onejob.jobs
  where cast(:skip_keyed as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
  for update skip locked
),
awaited as (
  select id, null::float8 as key_retained_until from onejob.jobs
  where not cast(:skip_keyed as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
  for update
),
old as (
  select * from at_rest
  union all
  select * from awaited
),
put_off as (
  update onejob.jobs as jobs set wake_at = old.key_retained_until
  from old, clock
  where jobs.id = old.id and old.key_retained_until > now
),
removed as (
  delete from onejob.jobs using old, clock
  where jobs.id = old.id and not coalesce(old.key_retained_until > now, false)
  returning jobs.id, jobs.state, jobs.finished_at
),
remembered as (
  insert into onejob.tombstones (id, state, finished_at, purged_at, until)
  select id, state, finished_at, now, now + cast(:tombstone_for as float8) from removed, clock
  where finished_at is not null and cast(:tombstone_for as float8) > 0
  on conflict (id) do update set (state, finished_at, purged_at, until) = row (
    excluded.state, excluded.finished_at, excluded.purged_at, excluded.until
  )
),
forgotten as (
  delete from onejob.tombstones
  where id = any(array(
    select id from onejob.tombstones
    where until <= (select now from clock) and id <> all(cast(:job_ids as text[])) -- which may be written anew
    order by until
    limit 2 * cardinality(cast(:job_ids as text[]))
    for update skip locked
  ))
)
select id from removed
