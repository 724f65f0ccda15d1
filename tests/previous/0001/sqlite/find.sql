-- in: :states (JSON array, empty for all) :task :identity :reason (a part of it) :before :before_id :limit (null for any)
-- out: jobs, newest first
select * from jobs
where (:states = '[]' or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:identity is null or identity = :identity)
  and (:reason is null or instr(lower(reason), lower(:reason)) > 0)
  and (:before is null or (created_at <= :before and (created_at < :before or id < :before_id)))
order by created_at desc, id desc
limit :limit
