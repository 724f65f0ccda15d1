-- name: duplicates
-- in: :job_id
-- out: the newest duplicates of the job, oldest first
select
  job_id, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled, at
from onejob.duplicates
cross join (
  select duplicate_count, {duplicate_limit} as slots from onejob.jobs where id = :job_id
) as job
where job_id = :job_id
order by slot < 0, mod(slot + 1 - duplicate_count, slots)
-- name: list_stats
-- in: :by (task, identity or submitter) :limit :submitter :tasks (array), null for any
-- out: name, task, outcome and count; the names with the largest counts first
with counted as (
  select task, identity, jobs.submitter as owner, counts.submitter, counts.outcome, count
  from onejob.duplicate_counts as counts join onejob.jobs as jobs on id = job_id
  union all
  select task, null, null, submitter, outcome, count from onejob.duplicate_sums where :by <> 'identity'
),
named as (
  select
    case cast(:by as text) when 'task' then task when 'identity' then identity else submitter end as name,
    task, outcome, count
  from counted
  where (cast(:submitter as text) is null or case cast(:by as text) when 'identity' then owner else submitter end = :submitter)
    and (cast(:tasks as text[]) is null or task = any(cast(:tasks as text[])))
),
largest as (
  select name, sum(case when outcome = {redelivered} then 0 else count end) as total
  from named group by name order by total desc, name limit :limit
)
select name, task, outcome, sum(count)::bigint as count from named join largest using (name)
group by name, task, outcome, total
order by total desc, name, task, outcome
