-- Ring the alarm of jobs that an idempotency key points to when the last key is forgotten.
-- in: :job_ids :sources (JSON arrays) :now
update jobs set wake_at = key_retained_until
where id in (select value from json_each(:job_ids)) and state in (select value from json_each(:sources))
  and not holds_identity and key_retained_until > :now
