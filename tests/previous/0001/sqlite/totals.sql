-- Return all running totals.
-- out: name, total
select name, total from metrics
