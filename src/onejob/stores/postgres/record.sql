-- Count somebody who has met a job, and keep the duplicate there. The job's row is not waited for: when somebody is just
-- writing it, the duplicate takes the place of any other one, and is counted in the statistics alone. So is a message that
-- came again, whose duplicate has a place of its own.
-- in: the fields of the duplicate, :duplicate_limit :now
with {clock},
met as (
  select id, task, identity from onejob.jobs
  where id = :job_id and not exists ( -- a request that is repeated
    select from onejob.duplicates where job_id = :job_id and submission_nonce = :submission_nonce and submission_nonce <> ''
  )
),
there as ( -- and nobody deletes it
  select id from onejob.jobs where id = (select id from met) for key share skip locked
),
at_rest as (
  select id from onejob.jobs where id = (select id from met) and :submission_nonce <> '' for no key update skip locked
),
counted as (
  update onejob.jobs as jobs set duplicate_count = jobs.duplicate_count + 1 from at_rest
  where jobs.id = at_rest.id
  returning jobs.duplicate_count
),
tallied as (
  insert into onejob.duplicate_stats as duplicate_stats (task, identity, submitter, outcome, count)
  select task, identity, :submitter, :outcome, 1 from met
  on conflict (identity, submitter, outcome, task) do update set count = duplicate_stats.count + 1
)
insert into onejob.duplicates as duplicates (
  job_id, slot, at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled
)
select
  id, case when :submission_nonce = '' then -1 else coalesce(
    (select mod(duplicate_count - 1, cast(:duplicate_limit as integer)) from counted),
    floor(random() * cast(:duplicate_limit as integer))::integer
  ) end,
  now, :submission_nonce, :outcome, :answered_by, :source, :submitter, :host, :fingerprint, cast(:arguments_differ as boolean),
  cast(:rescheduled as boolean)
from there, clock
{replace_duplicate}
