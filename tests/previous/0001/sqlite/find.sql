-- in: :states (JSON array, empty for all) :task :identity :submitter :reason (a part of it) :since :until :before
--     :before_id (null for any) :limit :offset
-- out: jobs, newest first
select * from jobs
where (:states = '[]' or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:identity is null or identity = :identity)
  and (:submitter is null or submitter = :submitter)
  and (:reason is null or instr(lower(reason), lower(:reason)) > 0)
  and created_at >= coalesce(:since, -9e999)
  and created_at < coalesce(:until, 9e999)
  and (:before is null or (created_at <= :before and (created_at < :before or id < :before_id)))
order by created_at desc, id desc
limit :limit offset :offset
