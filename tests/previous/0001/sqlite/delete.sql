-- Remove jobs with their steps and their histories.
-- in: :job_ids :sources (JSON arrays)
-- out: the ids of the jobs that were removed: in one of the states, and not holding their identity
delete from jobs
where id in (select value from json_each(:job_ids)) and not holds and state in (select value from json_each(:sources))
returning id
