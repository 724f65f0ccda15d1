-- Reserve new and expired idempotency keys for the submissions that follow in the same transaction: concurrent
-- submissions with one of them wait for the commit and then find the key. A key that a job answers is not locked.
-- in: :keys (array) :now
with {clock}
insert into onejob.keys as keys (key, fingerprint, until)
select key, '', 0 from unnest(cast(:keys as text[])) as given (key), clock
where not exists (select from onejob.keys as answered where answered.key = given.key and until > now)
order by key -- so that concurrent batches do not deadlock
on conflict (key) do update set job_id = null, until = 0
where keys.until <= (select now from clock)
