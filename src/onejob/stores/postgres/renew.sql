-- Extend many leases. A row that somebody is just writing is left alone: its transaction may be long, and the other
-- leases cannot wait for it.
-- in: :ids :nonces (arrays, pairwise) :sources (array) :now
-- out: id, claim and cancel of every job that is still this run's
with {clock},
asked as (
  select * from unnest(cast(:ids as text[]), cast(:nonces as text[])) as asked (id, claim)
),
mine as (
  select jobs.id from onejob.jobs join asked using (id, claim)
  where state = any(cast(:sources as text[]))
  for no key update of jobs skip locked
),
renewed as (
  update onejob.jobs as jobs set lease_until = now + lease, wake_at = now + lease
  from mine, clock
  where jobs.id = mine.id
)
select jobs.id, jobs.claim, jobs.cancel from onejob.jobs join asked using (id, claim)
where state = any(cast(:sources as text[]))
