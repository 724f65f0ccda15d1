-- name: new_job_columns
id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, retries, lease,
    canvas_pending
-- name: new_job_values
-- in: the fields of the submission
:id, :task, :identity, :fingerprint, :nonce, :submitter, :payload, :options, :priority_rank, :retries, :lease, :canvas
-- name: in_sources
-- in: :sources (JSON array of states)
state in (select value from json_each(:sources))
-- name: filters
-- in: :states (JSON array, empty for all) :tasks (JSON array) :task :identity :submitter :reason (a part of it) :since
--     :until (null for any)
(:states = '[]' or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:tasks is null or task in (select value from json_each(:tasks)))
  and (:identity is null or identity = :identity)
  and (:submitter is null or submitter = :submitter)
  and (:reason is null or instr(lower(reason), lower(:reason)) > 0)
  and created_at >= coalesce(:since, -9e999)
  and created_at < coalesce(:until, 9e999)
