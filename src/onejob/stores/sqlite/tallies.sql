-- in: :by (task, identity or submitter) :limit
-- out: name, task, outcome and count; the names with the most of them first
with named as (
  select case :by when 'task' then task when 'identity' then identity else submitter end as name, task, outcome, count
  from duplicate_stats
),
most as (
  select name, sum(count) as total from named group by name order by total desc, name limit :limit
)
select name, task, outcome, sum(count) as count from named join most using (name)
group by name, task, outcome
order by total desc, name, task, outcome
