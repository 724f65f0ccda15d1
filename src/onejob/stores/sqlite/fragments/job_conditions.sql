-- name: in_sources
-- in: :sources (names of states, each between spaces)
instr(:sources, ' ' || state || ' ')
-- name: referenced_until
-- Until when an idempotency key, or else an unfinished follower, keeps a job from being purged; null for not at all.
nullif(max(
    iif(key_retained_until > :now, key_retained_until, 0),
    iif(exists (select 1 from jobs as follower where follower.follows_id = jobs.id and follower.finished_at is null),
      :now + max(:now - coalesce(finished_at, :now), lease), 0)
  ), 0)
-- name: held_until
-- Until when a job holds its identity at most: a completed job within its uniqueness window, a waiting job until it expires.
-- in: a job
coalesce(identity_until, expires_at)
-- name: is_selected
-- in: :job_ids (JSON array) :sources :skip_needed :now
id in (select value from json_each(:job_ids)) and not holds_identity and {in_sources}
  and not (:skip_needed and ({referenced_until} is not null or canvas_pending))
-- name: is_deletable
-- in: as is_selected; :skip_referenced
{is_selected}
  and not (:skip_referenced and {referenced_until} is not null)
-- name: is_waiting
-- The condition of the index of waiting jobs, which also has ended jobs whose canvas is to be notified.
-- in: a job
lease_until is null and (finished_at is null or canvas_pending)
-- name: is_offered
-- The condition of the index of the jobs that workers take from the ledger when they are due.
-- in: a job
published_at is null and lease_until is null and finished_at is null and not queued_next and follows_id is null
    and substr(route, 1, 1) not in ('', '[')
-- name: is_claimable
-- Whether a claim may start a run.
-- in: a job, :nonce :sources :now
{in_sources}
  and run_at <= :now
  and (expires_at is null or expires_at > :now)
  and cancel = 0
  and not queued_next
  and instr(' ' || requests, ' ' || :nonce || ' ') = 0
