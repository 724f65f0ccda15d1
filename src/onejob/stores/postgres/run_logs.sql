-- name: keep_run_log
-- Write the log of the latest attempt, in place of what it was; delete those of old attempts. The lock keeps a new run
-- from starting between the read and the write.
-- in: :job_id :token :text :kept (how many attempts have a log)
-- out: the attempt; nothing when the token is stale
with run as (
  select id, attempt from onejob.jobs where id = :job_id and token = cast(:token as bigint) for no key update
),
trimmed as (
  delete from onejob.run_logs using run where job_id = run.id and run_logs.attempt <= run.attempt - cast(:kept as integer)
)
insert into onejob.run_logs (job_id, attempt, text)
select id, attempt, :text from run
on conflict (job_id, attempt) do update set text = excluded.text
returning attempt
-- name: run_logs
-- in: :job_id
-- out: attempt and text of each log
select attempt, text from onejob.run_logs where job_id = :job_id order by attempt
