-- name: increment
-- Add to totals.
-- in: :amounts (JSON object of names and numbers)
insert into metrics (name, total) select key, value from json_each(:amounts) where true
on conflict do update set total = total + excluded.total
-- name: totals
-- out: name, total
select name, total from metrics
-- name: heartbeat
-- Record the heartbeat of a worker.
-- in: :node :lasts (seconds) :registration (JSON) :now
insert into workers (name, seen_at, until, registration) values (:node, :now, :now + :lasts, :registration)
on conflict do update set seen_at = excluded.seen_at, until = excluded.until, registration = excluded.registration
-- name: delete_stale_workers
-- in: :now
delete from workers where until <= :now
-- name: workers
-- in: :now
-- out: name, seen_at and registration of the workers whose heartbeats have not expired
select name, seen_at, registration from workers where until > :now order by name
