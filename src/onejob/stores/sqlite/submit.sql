-- name: submit
-- Write a queued job that holds its identity.
-- in: the fields of the submission, :wake_in (seconds), :now
-- out: the job; nothing when its id exists or another job holds its identity
insert into jobs ({new_job_columns}, holds_identity, created_at, run_at, expires_at, wake_at, reason)
select
  {new_job_values}, 1, :now, :now + :delay, :now + :expires_in,
  min(:now + iif(:delay > 0, :delay, :wake_in), coalesce(:now + :expires_in, 9e999)), 'submitted'
where not exists (select 1 from jobs where id = :id)
on conflict (identity) where holds_identity do nothing
returning *
-- name: queue_next
-- Write the job that runs after the one which holds the identity: it sleeps until that one gives it up.
-- in: the fields of the submission, :follows_id (the holder), :now
-- out: the job; nothing when another one waits for the identity already
insert into jobs ({new_job_columns}, queued_next, follows_id, created_at, run_at, expires_at, wake_at, reason)
values (
  {new_job_values}, 1, :follows_id, :now, :now + :delay, :now + :expires_in, :now + :expires_in,
  'runs after ' || :follows_id
)
on conflict (identity) where queued_next do nothing
returning *
-- name: follow
-- Write a job that holds no identity and waits for the end of another one: it sleeps until then, or is due at once when
-- that one has ended.
-- in: the fields of the submission, :follows_id :reason :now
-- out: the follower
insert into jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
values (
  {new_job_values}, :follows_id, :now, :now,
  (select :now from jobs where id = :follows_id and finished_at is not null), :reason
)
returning *
-- name: holder
-- in: :identity
-- out: the job that holds the identity, or nothing
select * from jobs where identity = :identity and holds_identity
-- name: next
-- in: :identity
-- out: the job that waits for the identity, or nothing
select * from jobs where identity = :identity and queued_next
-- name: expire
-- Take the identity from a completed job whose uniqueness window is over.
-- in: :identity :now
-- out: the id of that job, or nothing
update jobs set holds_identity = 0
where identity = :identity and holds_identity and identity_until <= :now
returning id
-- name: attach
-- Change the job that answers a submission as the decision about it says.
-- in: :job_id :takes_over :fingerprint :payload :expires_at :run_at :priority_rank :wake_at (null: as it is)
-- out: the job
update jobs set
  fingerprint = iif(:takes_over, :fingerprint, fingerprint),
  payload = iif(:takes_over, :payload, payload),
  expires_at = :expires_at,
  run_at = :run_at,
  priority_rank = :priority_rank,
  wake_at = coalesce(min(coalesce(:wake_at, wake_at), coalesce(:expires_at, 9e999)), :expires_at)
where id = :job_id
returning *
