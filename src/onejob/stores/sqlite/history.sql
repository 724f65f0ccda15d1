-- name: insert_history
-- Append an entry to a job's history.
-- in: :job_id :now :event :detail
insert into history (job_id, seq, at, event, state, attempt, node, detail)
select
  id, (select coalesce(max(seq), 0) + 1 from history where job_id = :job_id), :now, :event, state, attempt, node, :detail
from jobs where id = :job_id
-- name: insert_claim
-- Append the entry of a claim to a job's history.
-- in: :job_id :at :attempt :node :detail
insert into history (job_id, seq, at, event, state, attempt, node, detail)
select :job_id, coalesce(max(seq), 0) + 1, :at, 'claim', 'running', :attempt, :node, :detail
from history where job_id = :job_id
-- name: trim_history
-- Delete the oldest entries of a job's history beyond the limit.
-- in: :job_id
delete from history
where job_id = :job_id and seq <= (select max(seq) from history where job_id = :job_id) - {history_limit}
