-- in: :by (task, identity or submitter) :limit
-- out: name, task, outcome and count; the names with the most of them first
with named as (
  select
    case cast(:by as text) when 'task' then task when 'identity' then identity else submitter end as name,
    task, outcome, count
  from onejob.duplicate_stats
),
most as (
  select name, sum(count) as total from named group by name order by total desc, name limit :limit
)
select name, task, outcome, sum(count)::bigint as count from named join most using (name)
group by name, task, outcome, total
order by total desc, name, task, outcome
