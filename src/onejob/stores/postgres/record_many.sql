-- Store duplicates that differ only by their nonces, the newest up to the limit, and count them.
-- in: the fields of the first duplicate, :submissions (array of all nonces), :duplicate_limit :now
with {clock},
new as ( -- without those of a repeated request
  select given.submission_nonce, row_number() over (order by given.ordinal) as number
  from unnest(cast(:submissions as text[])) with ordinality as given (submission_nonce, ordinal)
  where not exists (
    select from onejob.duplicates where job_id = :job_id and duplicates.submission_nonce = given.submission_nonce
  )
),
total as (
  select count(*)::integer as count from new
),
counted as (
  update onejob.jobs as jobs set duplicate_count = jobs.duplicate_count + total.count from total
  where jobs.id = :job_id and total.count > 0
  returning jobs.id, jobs.task, jobs.identity, jobs.duplicate_count
),
updated_stats as (
  insert into onejob.duplicate_stats as duplicate_stats (task, identity, submitter, outcome, count)
  select task, identity, :submitter, :outcome, total.count from counted, total
  on conflict (identity, submitter, outcome, task) do update set count = duplicate_stats.count + excluded.count
)
insert into onejob.duplicates as duplicates ({duplicate_columns})
select
  id, mod(duplicate_count - total.count + number - 1, cast(:duplicate_limit as integer)), now, new.submission_nonce,
  :outcome, :answered_by, :source, :submitter, :host, :fingerprint, cast(:arguments_differ as boolean),
  cast(:rescheduled as boolean)
from counted, total, new, clock
where number > total.count - cast(:duplicate_limit as integer)
{replace_duplicate}
