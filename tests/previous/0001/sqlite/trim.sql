-- Keep the newest lines of a job's history.
-- in: :job_id :history_limit
delete from history
where job_id = :job_id and seq <= (select max(seq) from history where job_id = :job_id) - :history_limit
