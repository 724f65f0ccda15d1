-- Remove a job with its steps and its history.
-- in: :job_id :sources
-- out: the id; nothing when the job is in another state or holds its identity
delete from jobs
where id = :job_id and not holds and state in (select value from json_each(:sources))
returning id
