-- name: increment
-- Add to totals, and to the current bucket of each period.
-- in: :amounts :recent (JSON objects of names and numbers) :periods (JSON array of their seconds) :now
insert into metric_buckets (period, starts_at, name, amount)
select 0, 0, key, value from json_each(:amounts)
union all
select periods.value, cast(:now / periods.value as integer) * periods.value, recent.key, recent.value
from json_each(:periods) as periods, json_each(:recent) as recent where true
on conflict do update set amount = amount + excluded.amount
-- name: delete_buckets
-- Delete some of the expired buckets of a period.
-- in: :period :kept_for (seconds) :limit :now
delete from metric_buckets where (period, starts_at, name) in (
  select period, starts_at, name from metric_buckets
  where period = :period and starts_at <= :now - :kept_for order by starts_at limit :limit
)
-- name: totals
-- out: name, total
select name, amount as total from metric_buckets where period = 0
-- name: series
-- in: :period :kept_for (seconds) :since :now
-- out: starts_at, name, amount
select starts_at, name, amount from metric_buckets
where period = :period and starts_at >= :since and starts_at > :now - :kept_for and starts_at <= :now
order by starts_at
-- name: heartbeat
-- Record the heartbeat of a worker.
-- in: :node :lasts (seconds) :registration (JSON) :now
insert into workers (name, seen_at, until, registration) values (:node, :now, :now + :lasts, :registration)
on conflict do update set seen_at = excluded.seen_at, until = excluded.until, registration = excluded.registration
-- name: delete_worker
-- in: :node
delete from workers where name = :node
-- name: take_dead_workers
-- Remove the workers whose heartbeats have expired.
-- in: :now
-- out: name, seen_at and registration of each
delete from workers where until <= :now returning name, seen_at, registration
-- name: workers
-- in: :now
-- out: name, seen_at and registration of the workers whose heartbeats have not expired
select name, seen_at, registration from workers where until > :now order by name
