-- Return the nodes whose heartbeat last.
-- in: :now
-- out: name, seen_at
select name, seen_at from workers where until > :now order by name
