-- Remove jobs with all that belongs to them.
-- in: :job_ids :sources (JSON arrays) :skip_keyed :now
-- out: id, state and finished_at of the jobs that were removed: in one of the states, and not holding their identity;
--      with :skip_keyed only those to which no idempotency key points
delete from jobs
where id in (select value from json_each(:job_ids)) and not holds_identity and state in (select value from json_each(:sources))
  and not (:skip_keyed and coalesce(key_retained_until, 0) > :now)
returning id, state, finished_at
