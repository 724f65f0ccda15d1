-- Delete jobs with everything that belongs to them, add the counts of their duplicates to the sums of their tasks, insert
-- their tombstones, and delete expired tombstones.
-- in: :job_ids :sources (arrays) :skip_referenced :skip_needed :successor (the job that answers their idempotency keys from
--     then on; null for none) :tombstone_for (seconds; 0 for none) :submitter_limit :now
-- out: the ids of the deleted jobs: in one of the states, and not holding their identity. With :skip_referenced a job to
--      which an idempotency key or an unfinished follower points stays, and becomes due when its last key expires, or
--      when the time since its end has doubled; a job whose row is locked or just changed stays until the next call.
--      With :skip_needed a job stays to which a key or such a follower points, or whose canvas is still to be notified
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
    and not (cast(:skip_needed as boolean) and {is_needed})
    -- Whoever writes a follower writes this row, too: a newer version than that of the snapshot may have one.
    and jobs.xmin = (select seen.xmin from onejob.jobs as seen where seen.id = jobs.id)
  for update of jobs skip locked
),
locked as (
  select id, null::float8 as referenced_until from onejob.jobs, clock
  where not cast(:skip_referenced as boolean)
    and id = any(cast(:job_ids as text[])) and not holds_identity and state = any(cast(:sources as text[]))
    and not (cast(:skip_needed as boolean) and {is_needed})
  for update of jobs
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
  returning jobs.id, jobs.task, jobs.state, jobs.finished_at, jobs.key_retained_until
),
answering as (
  update onejob.jobs as jobs set key_retained_until = greatest(jobs.key_retained_until, handed.kept_until)
  from (select max(key_retained_until) as kept_until from deleted, clock where key_retained_until > now) as handed
  where jobs.id = cast(:successor as text) and kept_until is not null
  returning jobs.id
),
handed_over as ( -- before the deletion cascades to the keys
  update onejob.keys as keys set job_id = answering.id from deleted, answering
  where keys.job_id = deleted.id and deleted.key_retained_until > (select now from clock)
),
deleted_counts as (
  delete from onejob.duplicate_counts as counts using deleted where job_id = deleted.id
  returning task, submitter, outcome, count
),
summed as ( -- in the order of the key, so that concurrent deletions do not deadlock
  insert into onejob.duplicate_sums as sums (task, submitter, outcome, count)
  select task, case when has_entry then submitter else {other_submitters} end as entry, outcome, sum(count)
  from (
    select *, exists (
      select from onejob.duplicate_sums where (task, submitter) = (deleted_counts.task, deleted_counts.submitter)
    ) or dense_rank() over (partition by task order by submitter) + (
      select count(*) from onejob.duplicate_sums where task = deleted_counts.task
    ) <= cast(:submitter_limit as integer) as has_entry
    from deleted_counts
  ) as counted
  group by task, entry, outcome
  order by task, entry, outcome
  on conflict (task, submitter, outcome) do update set count = sums.count + excluded.count
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
