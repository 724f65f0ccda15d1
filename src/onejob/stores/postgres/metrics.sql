-- name: increment
-- Add to totals and to the current bucket of each period, in the order of the key, so that concurrent processes do not
-- deadlock; delete some of the expired buckets whose rows are not locked.
-- The subqueries keep the arrays out of the plan, which is then made once for all.
-- in: :names :amounts, :recent_names :recent_amounts, :periods :kept_for (seconds) (arrays, pairwise) :now
with {unsynchronized_clock},
periods as (
  select period, kept_for
  from unnest((select cast(:periods as integer[])), (select cast(:kept_for as float8[])))
    as each_period (period, kept_for)
),
added (period, name, amount) as (
  select 0, name, amount
  from unnest((select cast(:names as text[])), (select cast(:amounts as float8[]))) as total (name, amount)
  union all
  select period, name, amount
  from periods,
    unnest((select cast(:recent_names as text[])), (select cast(:recent_amounts as float8[]))) as recent (name, amount)
),
expired as (
  select found.period, found.starts_at, found.name from periods, clock, lateral (
    select period, starts_at, name from onejob.metric_buckets as buckets
    where buckets.period = periods.period and starts_at <= now - kept_for
    order by starts_at limit 2 * cardinality((select cast(:recent_names as text[])))
    for update skip locked
  ) as found
),
deleted as (
  delete from onejob.metric_buckets as buckets using expired
  where (buckets.period, buckets.starts_at, buckets.name) = (expired.period, expired.starts_at, expired.name)
)
insert into onejob.metric_buckets as buckets (period, starts_at, name, amount)
select period, coalesce(floor(now / nullif(period, 0)) * period, 0), name, amount from added, clock
order by 1, 2, 3
on conflict (period, starts_at, name) do update set amount = buckets.amount + excluded.amount
-- name: totals
-- out: name, total
select name, amount as total from onejob.metric_buckets where period = 0
-- name: series
-- in: :period :kept_for (seconds) :since :now
-- out: starts_at, name, amount
with {clock}
select starts_at, name, amount from onejob.metric_buckets, clock
where period = :period and starts_at >= cast(:since as float8)
  and starts_at > now - cast(:kept_for as float8) and starts_at <= now
order by starts_at
-- name: heartbeat
-- Record the heartbeat of a worker.
-- in: :node :lasts (seconds) :registration (JSON)
with {unsynchronized_clock}
insert into onejob.workers (name, seen_at, until, registration)
select cast(:node as text), now, now + cast(:lasts as float8), cast(:registration as text)
from clock
on conflict (name) do update set
  seen_at = excluded.seen_at, until = excluded.until, registration = excluded.registration
-- name: delete_worker
-- in: :node
delete from onejob.workers where name = :node
-- name: workers
-- out: name, seen_at and registration of the workers whose heartbeats have not expired
with {clock}
select name, seen_at, registration from onejob.workers where until > (select now from clock) order by name collate "C"
-- name: take_dead_workers
-- Remove the workers whose heartbeats have expired.
-- out: name, seen_at and registration of each
with {clock}
delete from onejob.workers where until <= (select now from clock) returning name, seen_at, registration
