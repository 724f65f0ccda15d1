-- name: bump_job
-- Count a duplicate on the job in its way.
-- in: :job_id
-- out: that job
update jobs set duplicate_count = duplicate_count + 1 where id = :job_id returning *
-- name: insert_duplicate
-- Keep the duplicate of a duplicate, instead of the job's oldest one when there are enough. A message that came again has
-- a place of its own, for the latest one.
-- in: the fields of the duplicate, :duplicate_limit :now
insert or replace into duplicates
  (job_id, slot, at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled)
select
  id, iif(:submission_nonce = '', -1, (duplicate_count - 1) % :duplicate_limit), :now, :submission_nonce, :outcome, :answered_by, :source, :submitter, :host,
  :fingerprint, :arguments_differ, :rescheduled
from jobs where id = :job_id
-- name: find_duplicate
-- in: :job_id :follows_id (of that job, or null) :submission_nonce
-- out: the duplicate of this submission, if one of the two jobs was in its way before
select * from duplicates where job_id in (:job_id, :follows_id) and submission_nonce = :submission_nonce
-- name: duplicates
-- in: :job_id :duplicate_limit
-- out: the duplicates of the job's duplicates, oldest first
select * from duplicates where job_id = :job_id
order by slot < 0, (slot + 1 - (select duplicate_count from jobs where id = :job_id)) % :duplicate_limit
-- name: bump_stats
-- Count a duplicate for ever.
-- in: :task :identity :submitter :outcome
insert into duplicate_stats (task, identity, submitter, outcome, count) values (:task, :identity, :submitter, :outcome, 1)
on conflict do update set count = count + 1
-- name: list_stats
-- in: :by (task, identity or submitter) :limit
-- out: name, task, outcome and count; the names with the most of them first
with named as (
  select case :by when 'task' then task when 'identity' then identity else submitter end as name, task, outcome, count
  from duplicate_stats
),
most as (
  select name, sum(count) as total from named group by name order by total desc, name limit :limit
)
select name, task, outcome, sum(count) as count from named join most using (name)
group by name, task, outcome
order by total desc, name, task, outcome
