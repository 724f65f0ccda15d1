-- Count somebody who has met a job, and keep the receipt there. The job's row is not waited for: when somebody is just
-- writing it, the receipt takes the place of any other one, and is counted in the tallies alone. So is a message that
-- came again, whose receipt has a place of its own.
-- in: the fields of the receipt, :receipt_limit :now
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
met as (
  select id, task, identity from onejob.jobs
  where id = :job_id and not exists ( -- a request that is repeated
    select from onejob.receipts where job_id = :job_id and submission = :submission and submission <> ''
  )
),
there as ( -- and nobody deletes it
  select id from onejob.jobs where id = (select id from met) for key share skip locked
),
at_rest as (
  select id from onejob.jobs where id = (select id from met) and :submission <> '' for no key update skip locked
),
counted as (
  update onejob.jobs as jobs set duplicates = jobs.duplicates + 1 from at_rest
  where jobs.id = at_rest.id
  returning jobs.duplicates
),
tallied as (
  insert into onejob.tallies as tallies (task, identity, submitter, outcome, count)
  select task, identity, :submitter, :outcome, 1 from met
  on conflict (identity, submitter, outcome, task) do update set count = tallies.count + 1
)
insert into onejob.receipts as receipts (
  job_id, slot, at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved
)
select
  id, case when :submission = '' then -1 else coalesce(
    (select mod(duplicates - 1, cast(:receipt_limit as integer)) from counted),
    floor(random() * cast(:receipt_limit as integer))::integer
  ) end,
  now, :submission, :outcome, :answer, :door, :submitter, :host, :fingerprint, cast(:differs as boolean),
  cast(:moved as boolean)
from there, moment
on conflict (job_id, slot) do update set
  (at, submission, outcome, answer, door, submitter, host, fingerprint, differs, moved) = row (
    excluded.at, excluded.submission, excluded.outcome, excluded.answer, excluded.door, excluded.submitter,
    excluded.host, excluded.fingerprint, excluded.differs, excluded.moved
  )
