-- Remove jobs with their steps and their histories. What somebody is just writing is left for another time.
-- in: :job_ids :sources (arrays)
-- out: the ids of the jobs that were removed: in one of the states, and not holding their identity
with old as (
  select id from onejob.jobs
  where id = any(cast(:job_ids as text[])) and not holds and state = any(cast(:sources as text[]))
  for update skip locked
)
delete from onejob.jobs using old where jobs.id = old.id returning jobs.id
