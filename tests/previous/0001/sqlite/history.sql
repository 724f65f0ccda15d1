-- in: :job_id
-- out: what happened, oldest first
select at, event, state, attempt, node, detail from history where job_id = :job_id order by seq
