-- name: bump_job
-- Count a duplicate in the row of its job.
-- in: :job_id
-- out: the job
update jobs set duplicate_count = duplicate_count + 1 where id = :job_id returning {job_columns}
-- name: bump_holder
-- Count a duplicate in the row of the job that holds its identity.
-- in: :id :identity :submission_nonce (of the submission) :now
-- out: the job; nothing if no job holds the identity, if its hold is over, and for a repeated submission, whose id exists
--      or whose duplicate is stored
update jobs set duplicate_count = duplicate_count + 1
where identity = :identity and holds_identity and coalesce({held_until} > :now, true)
  and not exists (select 1 from jobs as own where own.id = :id)
  and not exists (
    select 1 from duplicates as stored
    where stored.job_id in (jobs.id, jobs.follows_id) and stored.submission_nonce = :submission_nonce
  )
returning {job_columns}
-- name: insert_duplicate
-- Store a duplicate in place of the oldest duplicate (its slot), or a redelivered message in slot -1: only the latest of
-- a job is kept.
-- in: the fields of the duplicate, :slot :now
insert or replace into duplicates
  (job_id, slot, at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ,
   rescheduled)
values
  (:job_id, :slot, :now, :submission_nonce, :outcome, :answered_by, :source, :submitter, :host, :fingerprint,
   :arguments_differ, :rescheduled)
-- name: find_duplicate
-- in: :job_id :follows_id (of that job, or null) :submission_nonce
-- out: the stored duplicate of this submission, of one of the two jobs
select * from duplicates where job_id in (:job_id, :follows_id) and submission_nonce = :submission_nonce
-- name: duplicates
-- in: :job_id
-- out: the newest duplicates of the job, oldest first
select * from duplicates where job_id = :job_id
order by slot < 0, (slot + 1 - (select duplicate_count from jobs where id = :job_id)) % {duplicate_limit}
-- name: count_duplicate
-- Count a duplicate of a job by submitter and outcome. The submitters of a job with many duplicates are limited.
-- in: :job_id :duplicate_count (of that job) :submitter :outcome :submitter_limit
insert into duplicate_counts (job_id, submitter, outcome, count)
values (
  :job_id,
  iif(
    :duplicate_count <= :submitter_limit
      or exists (select 1 from duplicate_counts where job_id = :job_id and submitter = :submitter),
    :submitter, {other_submitters}
  ),
  :outcome, 1
)
on conflict do update set count = count + 1
-- name: list_stats
-- in: :by (task, identity or submitter) :limit :submitter :tasks (JSON array), null for any
-- out: name, task, outcome and count; the names with the largest counts first
with counted as (
  select task, identity, jobs.submitter as owner, counts.submitter, counts.outcome, count
  from duplicate_counts as counts join jobs on id = job_id
  union all
  select task, null, null, submitter, outcome, count from duplicate_sums where :by <> 'identity'
),
named as (
  select case :by when 'task' then task when 'identity' then identity else submitter end as name, task, outcome, count
  from counted
  where (:submitter is null or iif(:by = 'identity', owner, submitter) = :submitter)
    and (:tasks is null or task in (select value from json_each(:tasks)))
),
largest as (
  select name, sum(iif(outcome = {redelivered}, 0, count)) as total
  from named group by name order by total desc, name limit :limit
)
select name, task, outcome, sum(count) as count from named join largest using (name)
group by name, task, outcome
order by total desc, name, task, outcome
