-- name: lock_run
-- Lock the row of a run, so that the next statement counts the duplicates that were committed before.
-- in: :job_id :token
select id from onejob.jobs where id = :job_id and token = cast(:token as bigint) for no key update
-- name: add_cost
-- Compare and set the costs of a run, and add to the sums of today: what is spent once, what is saved for each duplicate
-- that has saved a run so far. Runs after `lock_run`.
-- in: :job_id :token :request_id :sources (array) :expected :costs :amounts (JSON: an array of objects with task, label,
--     name, unit and spent) :saved_by (array: outcomes of duplicates) :submitter_limit :now
-- out: whether it was "applied", also for a repeated request, the costs, and the number of these duplicates; nothing when
--      the token is stale
with {clock},
run as (
  select id, costs, strpos(' ' || requests, ' ' || cast(:request_id as text) || ' ') > 0 as repeated
  from onejob.jobs
  where id = :job_id and token = cast(:token as bigint) and state = any(cast(:sources as text[]))
),
written as (
  update onejob.jobs as jobs set
    costs = cast(:costs as text), requests = left(cast(:request_id as text) || ' ' || jobs.requests, 136)
  from run
  where jobs.id = run.id and not repeated and jobs.costs is not distinct from cast(:expected as text)
  returning jobs.id, jobs.costs
),
prevented as (
  select coalesce(sum(count), 0)::bigint as number from onejob.duplicate_counts
  where job_id = (select id from written) and outcome = any(cast(:saved_by as text[]))
),
amounts as (
  select task, label, name, unit, spent, spent * number as saved
  from json_to_recordset(cast(:amounts as json)) as given (task text, label text, name text, unit text, spent numeric),
    prevented, written
),
added as (
  {add_costs}
),
deleted as (
  {delete_old_costs}
)
select
  repeated or written.id is not null as applied, coalesce(written.costs, run.costs) as costs, number as duplicates
from run left join written using (id), prevented
-- name: add_saved
-- Add to what is saved today.
-- in: :amounts (JSON: an array of objects with task, label, name, unit and saved) :submitter_limit :now
with {unsynchronized_clock},
amounts as (
  select task, label, name, unit, 0::numeric as spent, saved
  from json_to_recordset(cast(:amounts as json)) as given (task text, label text, name text, unit text, saved numeric)
),
deleted as (
  {delete_old_costs}
)
{add_costs}
-- name: cost_sums
-- in: :first :last (days) :label
-- out: the sums of these days; spent and saved as texts
select day, task, label, name, unit, spent::text as spent, saved::text as saved
from onejob.cost_sums
where day between cast(:first as text) and cast(:last as text) and label = :label
