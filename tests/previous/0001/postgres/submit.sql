-- Write a queued job that holds its identity, or count a duplicate on the job that holds it; a duplicate that must come
-- to an end under its own id gets a row, too, which sleeps until its leader ends.
-- in: the columns of the submission, :delay :expires_in :wake_in (seconds), :receipt_limit :window_over :now
-- out: the "holder" of the identity and, when that is another job, the row under this id as "own"; an id that exists
--      answers for itself. A unique violation means that somebody wrote this very id meanwhile: ask again.
with moment as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
own as (
  select * from onejob.jobs where id = :id
),
expired as (
  update onejob.jobs as jobs set holds = false, entries = entries + 1
  from moment
  where identity = :identity and holds and identity_until <= now
  returning jobs.*
),
placed as (
  insert into onejob.jobs as jobs (
    id, task, identity, fingerprint, submission, payload, state, holds, leader, token, claim, node, attempt, retries,
    crashes, lease, created_at, run_at, expires_at, wake_at, published, cancel, undelivered, duplicates, reason,
    requests, entries
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :payload, 'queued', true, null, 0, '', '', 0, cast(:retries as integer),
    0, cast(:lease as float8), now, now + cast(:delay as float8), now + cast(:expires_in as float8),
    least(now + cast(:wake_in as float8), now + cast(:expires_in as float8)), 0, 0, cast(:canvas as boolean), 0,
    'submitted', '', 1
  from moment
  where not exists (select from own) and (select count(*) from expired) >= 0 -- which has to come first
  on conflict (identity) where holds do update set
    duplicates = jobs.duplicates + 1,
    entries = jobs.entries + (jobs.id <> excluded.id and jobs.duplicates < :receipt_limit)::integer
  returning *
),
follower as (
  insert into onejob.jobs (
    id, task, identity, fingerprint, submission, payload, state, holds, leader, token, claim, node, attempt, retries,
    crashes, lease, created_at, run_at, wake_at, published, cancel, undelivered, duplicates, reason, requests, entries
  )
  select
    :id, :task, :identity, :fingerprint, :nonce, :payload, 'queued', false, placed.id, 0, '', '', 0,
    cast(:retries as integer), 0, cast(:lease as float8), now, now,
    case when placed.finished_at is not null then now end, 0, 0, cast(:canvas as boolean), 0,
    'follows ' || placed.id, '', 1
  from placed, moment
  where cast(:follows as boolean) and placed.id <> :id
  returning *
),
noted as (
  insert into onejob.history (job_id, seq, at, event, state, attempt, node, detail)
  select id, entries, now, case when id = :id then 'submit' else 'attach' end, state, attempt, node, :door
  from placed, moment
  where id = :id or duplicates <= :receipt_limit
  union all
  select id, entries, now, 'follow', state, attempt, node, reason from follower, moment
  union all
  select id, entries, now, 'free', state, attempt, node, :window_over from expired, moment
),
leader as (
  select * from onejob.jobs where id = (select leader from own)
),
found as (
  select 'holder' as role, * from placed
  union all
  select 'own', * from follower
  union all
  select 'own', * from own
  union all
  select 'holder', * from leader
)
select role, found.* from found
