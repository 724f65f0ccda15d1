-- name: today
-- in: clock
to_char(to_timestamp(now) at time zone 'utc', 'YYYY-MM-DD')
-- name: add_costs
-- Add amounts to the sums of today, in the order of the key, so that concurrent processes do not deadlock. The names of a
-- task are limited.
-- in: `amounts` (task, label, name, unit, spent, saved), clock, :submitter_limit
insert into onejob.cost_sums as sums (day, task, label, name, unit, spent, saved)
  select day, task, label, case when has_sum then name else {other_submitters} end as entry, unit, sum(spent), sum(saved)
  from (
    select day, task, label, name, unit, spent, saved, exists (
      select from onejob.cost_sums as kept
      where (kept.day, kept.task, kept.label, kept.name) = (days.day, amounts.task, amounts.label, amounts.name)
    ) or dense_rank() over (partition by task, label order by name collate "C") + (
      select count(distinct kept.name) from onejob.cost_sums as kept
      where (kept.day, kept.task, kept.label) = (days.day, amounts.task, amounts.label)
    ) <= cast(:submitter_limit as integer) as has_sum
    from amounts, (select {today} as day from clock) as days
  ) as added
  group by day, task, label, entry, unit
  order by day, task, label, entry, unit
  on conflict (day, task, label, name, unit) do update set
    spent = sums.spent + excluded.spent, saved = sums.saved + excluded.saved
-- name: delete_old_costs
-- Delete some of the sums of days that are over for `cost_days`.
-- in: clock
delete from onejob.cost_sums where (day, task, label, name, unit) in (
    select day, task, label, name, unit from onejob.cost_sums
    where day < (select to_char(to_timestamp(now - 86400.0 * {cost_days}) at time zone 'utc', 'YYYY-MM-DD') from clock)
    order by day limit 100
    for update skip locked
  )
