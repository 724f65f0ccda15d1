-- name: held_until
-- Until when a job holds its identity at most: a completed job within its uniqueness window, a waiting job until it expires.
-- in: a job
coalesce(jobs.identity_until, jobs.expires_at)
-- name: release_reason
-- in: a job that no longer holds its identity, by `held_until`
case when jobs.identity_until is null then {has_expired} else {window_over} end
-- name: is_plain
-- Whether a route is the name of a queue, whose workers can take the job from the ledger.
-- in: a job
left(jobs.route, 1) not in ('', '[')
-- name: is_offered
-- The condition of the index of the jobs that workers take from the ledger when they are due.
-- in: a job
jobs.published_at is null and jobs.lease_until is null and jobs.finished_at is null and not jobs.queued_next
    and jobs.follows_id is null and {is_plain}
-- name: is_needed
-- Whether an idempotency key or an unfinished follower points to a job, or its canvas is still to be notified.
-- in: now, a job
(coalesce(jobs.key_retained_until > now, false) or jobs.canvas_pending or exists (
      select from onejob.jobs as follower where follower.follows_id = jobs.id and follower.finished_at is null
    ))
-- name: is_waiting
-- The condition of the index of waiting jobs, which also has ended jobs whose canvas is to be notified.
-- in: a job
lease_until is null and (finished_at is null or canvas_pending)
-- name: waits_for_run
-- Whether a job waits for a run, in a form that fits to no index of waiting jobs: among few jobs PostgreSQL would choose
-- one for a look by another index, and keep that plan when there are many.
-- in: a job
coalesce(jobs.lease_until, jobs.finished_at) is null
-- name: is_waiting_by_id
-- What `is_waiting` says, in such a form, of jobs that are found by their ids.
-- in: a job
coalesce(jobs.lease_until, case when not jobs.canvas_pending then jobs.finished_at end) is null
