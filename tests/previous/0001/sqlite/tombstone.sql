-- in: :job_id :now
-- out: the tombstone; nothing when it is too old, or when there is a job of this id again
select * from tombstones
where id = :job_id and until > :now and not exists (select 1 from jobs where jobs.id = :job_id)
