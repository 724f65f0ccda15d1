-- Extend many leases. That of a job with limits is not extended after its end: another job may have got its slot. Locked
-- rows are skipped: a user's transaction may hold them for long, and the other leases must not wait for it. Values are in
-- subqueries for the reason in `take_due`.
-- in: :ids :nonces (arrays, pairwise) :sources (array) :now
-- out: id, claim and cancel of every job whose current run has the claim
with {unsynchronized_clock},
claims as (
  select * from unnest((select cast(:ids as text[])), (select cast(:nonces as text[]))) as claims (id, claim)
),
locked as (
  select jobs.id from onejob.jobs join claims using (id, claim)
  where state = any((select cast(:sources as text[]))::text[])
    and (limit_keys is null or lease_until > (select now from clock))
  for no key update of jobs skip locked
),
renewed as (
  update onejob.jobs as jobs set lease_until = now + lease, wake_at = now + lease
  from locked, clock
  where jobs.id = locked.id
)
select jobs.id, jobs.claim, jobs.cancel from onejob.jobs join claims using (id, claim)
where state = any((select cast(:sources as text[]))::text[])
  and (limit_keys is null or lease_until > (select now from clock))
