-- Lock the rows of quotas for the submissions that follow in the same transaction: the values that they read stay true
-- until its end. A new row is an expired window. Some expired windows of other quotas are deleted.
-- in: :names (array, sorted so that concurrent transactions do not deadlock) :now
with {clock},
expired as (
  select quotas.name from onejob.quotas, clock
  where quotas.until <= now and quotas.name <> all(cast(:names as text[])) order by quotas.until limit 10
  for update of quotas skip locked
),
deleted as (
  delete from onejob.quotas using expired where quotas.name = expired.name
)
insert into onejob.quotas as quotas (name, used, until)
select name, 0, 0 from unnest(cast(:names as text[])) as given (name)
on conflict (name) do update set used = quotas.used where false -- which locks the row, and writes nothing
