-- Start a later run of a job, as `claim` starts the first run, and store the history entry of the previous claim, whose
-- time and node this claim overwrites.
-- in: :job_id :nonce :node :sources (array) :target :now
-- out: as `claim`
with {unsynchronized_clock},
jobs as (
  select * from onejob.jobs where id = :job_id for no key update
),
claimed as (
  update onejob.jobs as claimed set
    {start_run},
    entries = jobs.entries + 1
  from jobs, clock
  where claimed.id = jobs.id and {is_claimable}
  returning claimed.*
),
inserted_history as (
  {insert_last_claim}
),
trimmed_history as (
  delete from onejob.history using claimed
  where job_id = claimed.id and claimed.entries > {history_limit} and seq <= claimed.entries - {history_limit}
)
select true as applied, claimed.* from claimed
union all
select claim = :nonce and state = :target, jobs.* from jobs where not exists (select from claimed)
