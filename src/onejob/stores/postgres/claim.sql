-- Start the first run of a job without limits: set a token and a lease, and clear the job's expiry. `claim_again` starts
-- a later run, and `claim_limited` a run of a job with limits.
-- The claim does not wait for the disk: when a crash of the server forgets it, the token of the next claim is larger.
-- in: :job_id :nonce :node :sources (array) :target :now
-- out: the job, and whether the claim is "applied": the nonce is the current run's; nothing when the job does
--      not exist
with {unsynchronized_clock},
claimed as (
  update onejob.jobs as jobs set
    {start_run}
  from clock
  where jobs.id = :job_id and jobs.attempt = 0 and (jobs.limit_keys is null or jobs.follows_id is not null) and {is_claimable}
  returning jobs.*
),
refused as ( -- locked, so that it is the newest version, also after a wait
  select * from onejob.jobs where id = :job_id and not exists (select from claimed) for no key update
)
select true as applied, claimed.* from claimed
union all
select claim = :nonce and state = :target, refused.* from refused
