-- in: :states (array, empty for all) :task :identity :submitter :reason (a part of it) :since :until :before :before_id
--     (null for any) :limit :offset
-- out: jobs, newest first
select jobs.* from onejob.jobs
where (cast(:states as text[]) = '{}' or state = any(cast(:states as text[])))
  and (cast(:task as text) is null or task = :task)
  and (cast(:identity as text) is null or identity = :identity)
  and (cast(:submitter as text) is null or submitter = :submitter)
  and (cast(:reason as text) is null or strpos(lower(reason), lower(cast(:reason as text))) > 0)
  and created_at >= coalesce(cast(:since as float8), '-infinity')
  and created_at < coalesce(cast(:until as float8), 'infinity')
  and (cast(:before as float8) is null or (created_at <= cast(:before as float8)
    and (created_at < cast(:before as float8) or id < cast(:before_id as text))))
order by created_at desc, id desc
limit :limit offset :offset
