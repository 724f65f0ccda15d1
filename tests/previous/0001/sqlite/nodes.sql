-- Return the nodes whose signs of life last.
-- in: :now
-- out: name, seen_at
select name, seen_at from nodes where until > :now order by name
