-- Start a run: set a new token and lease, and clear the job's expiry.
-- in: :job_id :nonce :node :sources (array) :target :history_limit :now
-- out: the job, and whether the claim is "applied": the current run is that of this nonce; nothing when the job does
--      not exist
with {clock},
job as (
  select * from onejob.jobs where id = :job_id for no key update
),
claimed as (
  update onejob.jobs as jobs set
    state = :target,
    token = greatest(jobs.token + 1, (now * 1000000)::bigint),
    claim = :nonce,
    node = :node,
    attempt = jobs.attempt + 1,
    lease_until = now + jobs.lease,
    wake_at = now + jobs.lease,
    started_at = now,
    expires_at = null,
    published = 0,
    publish_error = '',
    reason = 'running on ' || cast(:node as text),
    requests = left(cast(:nonce as text) || ' ' || jobs.requests, 136),
    entries = jobs.entries + 1
  from job, clock
  where jobs.id = job.id
    and job.state = any(cast(:sources as text[]))
    and job.run_at <= now
    and (job.expires_at is null or job.expires_at > now)
    and job.cancel = 0
    and not job.queued_next
    and strpos(' ' || job.requests, ' ' || cast(:nonce as text) || ' ') = 0
  returning jobs.*
),
inserted_history as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'claim', state, attempt, node, 'attempt ' || attempt || ' on ' || node from claimed, clock
),
trimmed_history as (
  delete from onejob.history using claimed
  where job_id = claimed.id and claimed.entries > :history_limit and seq <= claimed.entries - :history_limit
)
select true as applied, claimed.* from claimed
union all
select claim = :nonce and state = :target, job.* from job where not exists (select from claimed)
