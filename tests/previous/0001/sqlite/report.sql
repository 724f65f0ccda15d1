-- Keep a run's progress.
-- in: :job_id :token :sources :progress
-- out: what has been asked of the run; nothing when the token is stale
update jobs set progress = :progress
where id = :job_id and token = :token and state in (select value from json_each(:sources))
returning cancel
