-- Take the idempotency keys that nobody has, or whose time is over, for the submissions that follow in the same
-- transaction: whoever comes with one of them waits for its end, and then finds the key. A known key makes nobody wait.
-- in: :keys (array) :now
with {clock}
insert into onejob.keys as keys (key, fingerprint, until)
select key, '', 0 from unnest(cast(:keys as text[])) as given (key), clock
where not exists (select from onejob.keys as known where known.key = given.key and until > now)
order by key -- so that no two of those who take many wait for each other in a circle
on conflict (key) do update set job_id = null, until = 0
where keys.until <= (select now from clock)
