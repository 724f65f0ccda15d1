-- Count those who have met a job in the very same way, and keep their receipts there, as many as are kept.
-- in: the fields of the receipt of the first, :submissions (array of the nonces of all), :receipt_limit :now
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
new as ( -- a request may be repeated
  select given.submission, row_number() over (order by given.place) as number
  from unnest(cast(:submissions as text[])) with ordinality as given (submission, place)
  where not exists (
    select from onejob.receipts where job_id = :job_id and receipts.submission = given.submission
  )
),
total as (
  select count(*)::integer as count from new
),
counted as (
  update onejob.jobs as jobs set duplicates = jobs.duplicates + total.count from total
  where jobs.id = :job_id and total.count > 0
  returning jobs.id, jobs.task, jobs.identity, jobs.duplicates
),
tallied as (
  insert into onejob.tallies as tallies (task, identity, submitter, outcome, count)
  select task, identity, :submitter, :outcome, total.count from counted, total
  on conflict (identity, submitter, outcome, task) do update set count = tallies.count + excluded.count
)
insert into onejob.receipts as receipts (
  job_id, slot, at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved
)
select
  id, mod(duplicates - total.count + number - 1, cast(:receipt_limit as integer)), now, new.submission, :outcome, :answer,
  :door, :submitter, :host, :fingerprint, cast(:differs as boolean), cast(:moved as boolean)
from counted, total, new, moment
where number > total.count - cast(:receipt_limit as integer)
on conflict (job_id, slot) do update set
  (at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved) = row (
    excluded.at, excluded.submission, excluded.outcome, excluded.answer, excluded.door, excluded.submitter,
    excluded.host, excluded.fingerprint, excluded.differs, excluded.moved
  )
