-- Store a duplicate and count it. The statement does not wait for the job's row: when it is locked, the duplicate
-- replaces a random duplicate and is counted by submitter only. A redelivered message is counted by submitter only, too,
-- and has a slot of its own.
-- in: the fields of the duplicate, :now
with {unsynchronized_clock},
target as (
  select id, duplicate_count from onejob.jobs
  where id = :job_id and not exists ( -- unless the request is repeated
    select from onejob.duplicates
    where job_id = :job_id and submission_nonce = :submission_nonce and submission_nonce <> ''
  )
),
protected as ( -- from deletion
  select id from onejob.jobs where id = (select id from target) for key share skip locked
),
unlocked as (
  select id from onejob.jobs where id = (select id from target) and :submission_nonce <> '' for no key update skip locked
),
updated as (
  update onejob.jobs as jobs set duplicate_count = jobs.duplicate_count + 1 from unlocked
  where jobs.id = unlocked.id
  returning jobs.duplicate_count
),
counted as (
  select
    id, target.duplicate_count, case when :submission_nonce = '' then {redelivered} else :outcome end as outcome,
    1 as number
  from protected join target using (id)
),
updated_counts as (
  {count_duplicates}
)
insert into onejob.duplicates as duplicates ({duplicate_columns})
select
  id, case when :submission_nonce = '' then -1 else coalesce(
    (select mod(duplicate_count - 1, {duplicate_limit}) from updated),
    floor(random() * {duplicate_limit})::integer
  ) end,
  now, :submission_nonce, :outcome, :answered_by, :source, :submitter, :host, :fingerprint,
  cast(:arguments_differ as boolean), cast(:rescheduled as boolean)
from protected, clock
{replace_duplicate}
