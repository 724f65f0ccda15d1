-- in: :states (JSON array, empty for all) :task :identity :submitter :reason (a part of it) :since :until (null for any)
-- out: how many jobs match, by state
select state, count(*) as count from jobs
where (:states = '[]' or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:identity is null or identity = :identity)
  and (:submitter is null or submitter = :submitter)
  and (:reason is null or instr(lower(reason), lower(:reason)) > 0)
  and created_at >= coalesce(:since, -9e999)
  and created_at < coalesce(:until, 9e999)
group by state
