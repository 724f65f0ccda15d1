-- name: increment
-- Add to running totals, always in the order of their names, so that no two processes wait for each other in a circle.
-- in: :names :amounts (arrays, pairwise)
insert into onejob.metrics as metrics (name, total)
select name, amount from unnest(cast(:names as text[]), cast(:amounts as float8[])) as added (name, amount)
order by name
on conflict (name) do update set total = metrics.total + excluded.total
-- name: totals
-- out: name, total
select name, total from onejob.metrics
-- name: heartbeat
-- Keep the heartbeat of a worker, and delete stale workers; one that another transaction is just writing stays.
-- in: :node :lasts (seconds; 0 removes the worker)
with {clock},
stale as (
  select name from onejob.workers where until <= (select now from clock) and name <> :node for update skip locked
),
removed as (
  delete from onejob.workers as workers
  where name in (select name from stale) or (name = :node and cast(:lasts as float8) <= 0)
)
insert into onejob.workers (name, seen_at, until)
select cast(:node as text), now, now + cast(:lasts as float8) from clock where cast(:lasts as float8) > 0
on conflict (name) do update set seen_at = excluded.seen_at, until = excluded.until
-- name: nodes
-- out: name and seen_at of the workers whose heartbeats last
with {clock}
select name, seen_at from onejob.workers where until > (select now from clock) order by name collate "C"
