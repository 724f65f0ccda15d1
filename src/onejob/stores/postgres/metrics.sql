-- name: increment
-- Add to totals, in the order of their names, so that concurrent processes do not deadlock.
-- in: :names :amounts (arrays, pairwise)
with {unsynchronized_clock}
insert into onejob.metrics as metrics (name, total)
select name, amount from unnest(cast(:names as text[]), cast(:amounts as float8[])) as added (name, amount), clock
order by name
on conflict (name) do update set total = metrics.total + excluded.total
-- name: totals
-- out: name, total
select name, total from onejob.metrics
-- name: heartbeat
-- Record the heartbeat of a worker, and delete stale workers whose rows are not locked.
-- in: :node :lasts (seconds; 0 removes the worker) :registration (JSON)
with {unsynchronized_clock},
stale as (
  select name from onejob.workers where until <= (select now from clock) and name <> :node for update skip locked
),
deleted as (
  delete from onejob.workers as workers
  where name in (select name from stale) or (name = :node and cast(:lasts as float8) <= 0)
)
insert into onejob.workers (name, seen_at, until, registration)
select cast(:node as text), now, now + cast(:lasts as float8), cast(:registration as text)
from clock where cast(:lasts as float8) > 0
on conflict (name) do update set
  seen_at = excluded.seen_at, until = excluded.until, registration = excluded.registration
-- name: workers
-- out: name, seen_at and registration of the workers whose heartbeats have not expired
with {clock}
select name, seen_at, registration from onejob.workers where until > (select now from clock) order by name collate "C"
