-- name: new_job_columns
id, task, identity, fingerprint, submission_nonce, submitter, source, payload, options, route, priority_rank, retries, lease,
    canvas_pending, wake_task
-- name: new_job_values
-- in: the fields of the submission
:id, :task, :identity, :fingerprint, :nonce, :submitter, :source, :payload, :options, :route, :priority_rank, :retries, :lease,
    :canvas, :wake_task
-- name: in_sources
-- in: :sources (names of states, each between spaces)
instr(:sources, ' ' || state || ' ')
-- name: is_deletable
-- in: :job_ids (JSON array) :sources :skip_referenced :now
id in (select value from json_each(:job_ids)) and not holds_identity and {in_sources}
  and not (:skip_referenced and {referenced_until} is not null)
-- name: referenced_until
-- Until when an idempotency key, or else an unfinished follower, keeps a job from being purged; null for not at all.
nullif(max(
    iif(key_retained_until > :now, key_retained_until, 0),
    iif(exists (select 1 from jobs as follower where follower.follows_id = jobs.id and follower.finished_at is null),
      :now + max(:now - coalesce(finished_at, :now), lease), 0)
  ), 0)
-- name: filters
-- in: :states (JSON array, empty for all) :tasks (JSON array) :task :identity :submitter :reason (a part of it) :since
--     :until (null for any) :unsettled
(:states = '[]' or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:tasks is null or task in (select value from json_each(:tasks)))
  and (:identity is null or identity = :identity)
  and (:submitter is null or submitter = :submitter)
  and (:reason is null or instr(lower(reason), lower(:reason)) > 0)
  and (not :unsettled or finished_at is null or canvas_pending)
  and created_at >= coalesce(:since, -9e999)
  and created_at < coalesce(:until, 9e999)
-- name: of_submitter
-- in: :submitter
submitter = :submitter and submitter <> ''
-- name: page
-- in: the filters, :before :before_id (null for any) :limit :offset
{filters}
  and (:before is null or (created_at <= :before and (created_at < :before or id < :before_id)))
order by created_at desc, id desc
limit :limit offset :offset
