-- name: set_costs
-- Compare and set the costs of a run.
-- in: :job_id :token :request_id :sources :expected :costs
-- out: the costs; nothing when the token is stale, the costs are others, or the request is repeated
update jobs set costs = :costs, requests = substr(:request_id || ' ' || requests, 1, 136)
where id = :job_id and token = :token and {in_sources}
  and costs is :expected
  and instr(' ' || requests, ' ' || :request_id || ' ') = 0
returning costs
-- name: find_costs
-- in: :job_id :token :request_id :sources
-- out: the costs of a run, and whether a request is repeated; nothing when the token is stale
select costs, instr(' ' || requests, ' ' || :request_id || ' ') > 0 as repeated from jobs
where id = :job_id and token = :token and {in_sources}
-- name: count_prevented
-- in: :job_id :saved_by (outcomes, each between spaces)
-- out: how many duplicates of the job have one of the outcomes
select coalesce(sum(count), 0) as number from duplicate_counts
where job_id = :job_id and instr(:saved_by, ' ' || outcome || ' ')
-- name: find_cost_names
-- in: :day :task :label
-- out: the names that have sums of a day
select distinct name from cost_sums where day = :day and task = :task and label = :label
-- name: get_cost_sum
-- in: the key of a sum
select spent, saved from cost_sums
where day = :day and task = :task and label = :label and name = :name and unit = :unit
-- name: put_cost_sum
-- in: the columns of a sum
insert or replace into cost_sums (day, task, label, name, unit, spent, saved)
values (:day, :task, :label, :name, :unit, :spent, :saved)
-- name: delete_old_costs
-- in: :oldest (the first day that is kept)
delete from cost_sums where day < :oldest
-- name: cost_sums
-- in: :first :last (days) :label
-- out: the sums of these days
select day, task, label, name, unit, spent, saved from cost_sums
where day between :first and :last and label = :label
