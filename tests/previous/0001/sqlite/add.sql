-- Add to running totals.
-- in: :amounts (JSON object of names and numbers)
insert into metrics (name, total) select key, value from json_each(:amounts) where true
on conflict do update set total = total + excluded.total
