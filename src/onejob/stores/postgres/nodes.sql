-- Return the nodes whose heartbeat last.
-- in: :now
-- out: name, seen_at
select name, seen_at from onejob.workers
where until > coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8)
order by name collate "C"
