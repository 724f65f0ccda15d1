-- in: :states (array, empty for all) :task :identity :submitter :reason (a part of it) :since :until (null for any)
-- out: how many jobs match, by state
select state, count(*) as count from onejob.jobs
where (cast(:states as text[]) = '{}' or state = any(cast(:states as text[])))
  and (cast(:task as text) is null or task = :task)
  and (cast(:identity as text) is null or identity = :identity)
  and (cast(:submitter as text) is null or submitter = :submitter)
  and (cast(:reason as text) is null or strpos(lower(reason), lower(cast(:reason as text))) > 0)
  and created_at >= coalesce(cast(:since as float8), '-infinity')
  and created_at < coalesce(cast(:until as float8), 'infinity')
group by state
