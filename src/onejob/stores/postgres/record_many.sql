-- Store duplicates that differ only by their nonces, the newest up to the limit, and count them.
-- in: the fields of the first duplicate, :submissions (array of all nonces), :nonce (the last of them) :now
with {unsynchronized_clock},
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
  update onejob.jobs as jobs set
    duplicate_count = jobs.duplicate_count + total.count,
    duplicate_nonces = {add_nonce}
  from total
  where jobs.id = :job_id and total.count > 0 and not {is_repeated}
  returning jobs.id, jobs.duplicate_count, :outcome as outcome, total.count as number
),
updated_counts as (
  {count_duplicates}
)
insert into onejob.duplicates as duplicates ({duplicate_columns})
select
  id, mod(duplicate_count - total.count + new.number - 1, {duplicate_limit}), now, new.submission_nonce,
  :outcome, :answered_by, :source, :submitter, :host, :fingerprint, cast(:arguments_differ as boolean),
  cast(:rescheduled as boolean)
from counted, total, new, clock
where new.number > total.count - {duplicate_limit}
{replace_duplicate}
