-- Keep a node's heartbeat, and remove those that are over; one that somebody is just writing stays.
-- in: :node :lasts (seconds; 0 removes the node's) :now
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
over as (
  select name from onejob.workers where until <= (select now from clock) and name <> :node for update skip locked
),
gone as (
  delete from onejob.workers as workers
  where name in (select name from over) or (name = :node and cast(:lasts as float8) <= 0)
)
insert into onejob.workers (name, seen_at, until)
select cast(:node as text), now, now + cast(:lasts as float8) from clock where cast(:lasts as float8) > 0
on conflict (name) do update set seen_at = excluded.seen_at, until = excluded.until
