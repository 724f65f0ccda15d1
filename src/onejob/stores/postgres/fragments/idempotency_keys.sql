-- name: key_retained_until
case when cast(:key as text) is not null then now + cast(:key_for as float8) end
-- name: identified
-- The job that answers a known id, if the idempotency key is new and the arguments equal the known submission's.
-- in: `own` (rows of jobs), `keyed`, :key :nonce :fingerprint
identified as (
  select case when own.queued_next then own.id else coalesce(followed.id, own.id) end as id
  from own left join onejob.jobs as followed on followed.id = own.follows_id
  where cast(:key as text) is not null and not exists (select from keyed)
    and own.submission_nonce <> :nonce and own.fingerprint = :fingerprint
)
-- name: keep_key
-- Store the answering job for the idempotency key; release the key of a submission that no job answers.
-- in: `answer`, `named` (the job that answers a known id)
kept_key as (
  insert into onejob.keys as keys (key, job_id, fingerprint, until)
  select :key, id, :fingerprint, now + cast(:key_for as float8)
  from (select id from answer where outcome <> 'rejected' union all select id from named) as answered, clock
  where cast(:key as text) is not null and not exists (select from keyed)
  on conflict (key) do update set job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until
  where keys.until <= (select now from clock)
),
released_key as (
  delete from onejob.keys
  where key = cast(:key as text) and job_id is null
    and not exists (select from answer where outcome <> 'rejected') and not exists (select from named)
)
