-- name: trim_run_logs
-- Delete the logs of a job's old attempts.
-- in: :job_id :token :kept (how many attempts have a log)
delete from run_logs
where job_id = :job_id
  and attempt <= (select attempt - :kept from jobs where id = :job_id and token = :token)
-- name: keep_run_log
-- Write the log of the latest attempt, in place of what it was.
-- in: :job_id :token :text
-- out: the attempt; nothing when the token is stale
insert into run_logs (job_id, attempt, text)
select id, attempt, :text from jobs where id = :job_id and token = :token
on conflict (job_id, attempt) do update set text = excluded.text
returning attempt
-- name: run_logs
-- in: :job_id
-- out: attempt and text of each log
select attempt, text from run_logs where job_id = :job_id order by attempt
