-- Add to running totals, always in the order of their names: no two of those who add wait for each other in a circle.
-- in: :names :amounts (arrays, pairwise)
insert into onejob.metrics as metrics (name, total)
select name, amount from unnest(cast(:names as text[]), cast(:amounts as float8[])) as added (name, amount)
order by name
on conflict (name) do update set total = metrics.total + excluded.total
