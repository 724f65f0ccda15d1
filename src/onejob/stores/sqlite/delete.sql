-- name: delete
-- Delete jobs with everything that belongs to them.
-- in: :job_ids (JSON array) :sources :skip_referenced :skip_needed :now
-- out: id, state and finished_at of the deleted jobs: in one of the states, and not holding their identity; with
--      :skip_referenced only those to which no idempotency key and no unfinished follower points, with :skip_needed only
--      those of them whose canvas was notified
delete from jobs
where {is_deletable}
returning id, state, finished_at
-- name: hand_over_keys
-- Have the idempotency keys of the jobs that `delete` deletes name another job, the successor, if it exists.
-- in: as delete; :successor (the id of that job)
update keys set job_id = :successor
where exists (select 1 from jobs where id = :successor)
  and job_id in (select id from jobs where {is_deletable} and key_retained_until > :now)
-- name: retain_successor
-- Retain the successor at least as long as the jobs that `delete` deletes would have been retained.
-- in: as delete; :successor (the id of that job)
update jobs set key_retained_until = max(
  coalesce(key_retained_until, 0),
  (select max(key_retained_until) from jobs where {is_deletable} and key_retained_until > :now)
)
where id = :successor
  and exists (select 1 from jobs where {is_deletable} and key_retained_until > :now)
-- name: sum_counts
-- Add the counts of the duplicates of the jobs that `delete` deletes to the sums of their tasks.
-- in: as delete; :submitter_limit
insert into duplicate_sums (task, submitter, outcome, count)
select task, iif(has_entry, submitter, {other_submitters}) as entry, outcome, sum(count)
from (
  select
    task, counts.submitter, outcome, count,
    exists (select 1 from duplicate_sums as sums where sums.task = jobs.task and sums.submitter = counts.submitter)
      or dense_rank() over (partition by task order by counts.submitter) + (
        select count(*) from duplicate_sums as sums where sums.task = jobs.task
      ) <= :submitter_limit as has_entry
  from jobs join duplicate_counts as counts on job_id = id
  where {is_deletable}
) as counted
where true
group by task, entry, outcome
on conflict do update set count = count + excluded.count
-- name: reschedule_referenced
-- Make jobs that an idempotency key or an unfinished follower points to due when their last key expires, or when the
-- time since their end has doubled.
-- in: :job_ids (JSON array) :sources :skip_needed :now
update jobs set wake_at = {referenced_until}
where {is_selected} and {referenced_until} is not null
-- name: insert_tombstone
-- Store how a deleted job had ended, if it had.
-- in: :id :state :finished_at :tombstone_for (seconds) :now
insert or replace into tombstones (id, state, finished_at, purged_at, until)
select :id, :state, :finished_at, :now, :now + :tombstone_for
where :finished_at is not null and :tombstone_for > 0
-- name: delete_tombstones
-- in: :limit :now
delete from tombstones where id in (select id from tombstones where until <= :now order by until limit :limit)
