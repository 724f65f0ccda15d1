-- Keep a run's progress.
-- in: :job_id :token :sources (array) :progress
-- out: what has been asked of the run; nothing when the token is stale
update onejob.jobs set progress = :progress
where id = :job_id and token = cast(:token as bigint) and state = any(cast(:sources as text[]))
returning cancel
