-- name: submit
-- Write a new job that holds its identity; nothing when its id exists or another job holds its identity.
-- in: the fields of the job
insert into jobs (
  {new_job_columns}, parked_on, holds_identity, created_at, run_at, expires_at, published_at, wake_at, reason
)
values (
  {new_row_values}, :parked_on, :holds_identity, :created_at, :run_at, :expires_at, :published_at, :wake_at, :reason
)
on conflict do nothing
-- name: queue_next
-- Write the job that is queued next: it runs after the holder of the identity, whose end makes it due.
-- in: the fields of the submission, :follows_id (the holder), :now
-- out: the job; nothing when another job is queued next already
insert into jobs ({new_job_columns}, queued_next, follows_id, created_at, run_at, expires_at, wake_at, reason)
values (
  {new_job_values}, 1, :follows_id, :now, :now + :delay, :now + :expires_in,
  :now + min(:lease, coalesce(:expires_in, 9e999)), 'runs after ' || :follows_id
)
on conflict (identity) where queued_next do nothing
returning {job_columns}
-- name: follow
-- Write a follower: a queued job that holds no identity and ends as another job ends, which makes it due; if the
-- followed job has ended already, it is due at once.
-- in: the fields of the submission, :follows_id :reason :now
-- out: the follower
insert into jobs ({new_job_columns}, follows_id, created_at, run_at, wake_at, reason)
values (
  {new_job_values}, :follows_id, :now, :now,
  :now + iif((select finished_at from jobs where id = :follows_id) is null, :lease, 0), :reason
)
returning {job_columns}
-- name: get_holder
-- in: :identity
-- out: the job that holds the identity, or nothing
select {job_columns} from jobs where identity = :identity and holds_identity
-- name: get_queued_next
-- in: :identity
-- out: the job that is queued next, or nothing
select {job_columns} from jobs where identity = :identity and queued_next
-- name: release_expired
-- Release the identity of a completed job whose uniqueness window is over, or of a waiting job that has expired.
-- in: :identity :now
-- out: the id of that job and its `identity_until`, or nothing
update jobs set holds_identity = 0
where identity = :identity and holds_identity and {held_until} <= :now
returning id, identity_until
-- name: release_next
-- Free the place of a job that is queued next and has expired; a sweep cancels the job.
-- in: :identity :now
-- out: the id of the job, or nothing
update jobs set queued_next = 0, follows_id = null
where identity = :identity and queued_next and expires_at <= :now
returning id
-- name: attach
-- Update the job that answers a duplicate, as `onejob.jobs.on_duplicate.resolve` decided.
-- in: :job_id :takes_over :fingerprint :payload :route :tag_lines :limit_keys :expires_at :run_at :priority_rank
--     :wake_at (null: unchanged, as is published_at) :published_at
-- out: the job
update jobs set
  fingerprint = iif(:takes_over, :fingerprint, fingerprint),
  payload = iif(:takes_over, :payload, payload),
  route = iif(:takes_over, :route, route),
  tag_lines = iif(:takes_over, :tag_lines, tag_lines),
  limit_keys = iif(:takes_over, :limit_keys, limit_keys),
  expires_at = :expires_at,
  run_at = :run_at,
  priority_rank = :priority_rank,
  wake_at = min(coalesce(:wake_at, wake_at), coalesce(:expires_at, 9e999)),
  published_at = iif(:wake_at is null, published_at, :published_at)
where id = :job_id
returning {job_columns}
