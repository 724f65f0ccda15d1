-- Keep a node's sign of life, and remove those that are over; one that somebody is just writing stays.
-- in: :node :lasts (seconds; 0 removes the node's) :now
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
over as (
  select name from onejob.nodes where until <= (select now from moment) and name <> :node for update skip locked
),
gone as (
  delete from onejob.nodes as nodes
  where name in (select name from over) or (name = :node and cast(:lasts as float8) <= 0)
)
insert into onejob.nodes (name, seen_at, until)
select cast(:node as text), now, now + cast(:lasts as float8) from moment where cast(:lasts as float8) > 0
on conflict (name) do update set seen_at = excluded.seen_at, until = excluded.until
