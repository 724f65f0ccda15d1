-- Remove jobs with all that belongs to them, remember what had come of them, and forget that of others.
-- in: :job_ids :sources (arrays) :spares :tombstone_for (seconds; 0 for none) :now
-- out: the ids of the jobs that were removed: in one of the states, and not holding their identity; with :spares only
--      those to which no idempotency key points, and which nobody is just writing: the alarms of the former ring when
--      their last key is forgotten, and the latter are left for another time
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
at_rest as (
  select id, kept_until from onejob.jobs
  where cast(:spares as boolean)
    and id = any(cast(:job_ids as text[])) and not holds and state = any(cast(:sources as text[]))
  for update skip locked
),
awaited as (
  select id, null::float8 as kept_until from onejob.jobs
  where not cast(:spares as boolean)
    and id = any(cast(:job_ids as text[])) and not holds and state = any(cast(:sources as text[]))
  for update
),
old as (
  select * from at_rest
  union all
  select * from awaited
),
put_off as (
  update onejob.jobs as jobs set wake_at = old.kept_until
  from old, moment
  where jobs.id = old.id and old.kept_until > now
),
removed as (
  delete from onejob.jobs using old, moment
  where jobs.id = old.id and not coalesce(old.kept_until > now, false)
  returning jobs.id, jobs.state, jobs.finished_at
),
remembered as (
  insert into onejob.tombstones (id, state, finished_at, purged_at, until)
  select id, state, finished_at, now, now + cast(:tombstone_for as float8) from removed, moment
  where finished_at is not null and cast(:tombstone_for as float8) > 0
  on conflict (id) do update set (state, finished_at, purged_at, until) = row (
    excluded.state, excluded.finished_at, excluded.purged_at, excluded.until
  )
),
forgotten as (
  delete from onejob.tombstones
  where id = any(array(
    select id from onejob.tombstones
    where until <= (select now from moment) and id <> all(cast(:job_ids as text[])) -- which may be written anew
    order by until
    limit 2 * cardinality(cast(:job_ids as text[]))
    for update skip locked
  ))
)
select id from removed
