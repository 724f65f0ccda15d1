-- name: count_duplicates
-- Count duplicates of a job by submitter and outcome. The submitters of a job with many duplicates are limited.
-- in: `counted` (id, duplicate_count, outcome, number), :submitter :submitter_limit
insert into onejob.duplicate_counts as counts (job_id, submitter, outcome, count)
  select
    id,
    case
      when duplicate_count <= cast(:submitter_limit as integer) or exists (
        select from onejob.duplicate_counts where job_id = id and submitter = :submitter
      ) then :submitter
      else {other_submitters}
    end, outcome, number
  from counted
  on conflict (job_id, submitter, outcome) do update set count = counts.count + excluded.count
-- name: is_repeated
-- Whether the locked row, which may be newer than the statement's snapshot, has the duplicate of this request.
-- in: :nonce
strpos(' ' || jobs.duplicate_nonces, ' ' || cast(:nonce as text) || ' ') > 0
-- name: add_nonce
-- in: :nonce
left(:nonce || ' ' || jobs.duplicate_nonces, 136)
-- name: duplicate_columns
job_id, slot, at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ,
  rescheduled
-- name: replace_duplicate
on conflict (job_id, slot) do update set
  (
    at, submission_nonce, outcome, answered_by, source, submitter, host, fingerprint, arguments_differ, rescheduled
  ) = row (
    excluded.at, excluded.submission_nonce, excluded.outcome, excluded.answered_by, excluded.source, excluded.submitter,
    excluded.host, excluded.fingerprint, excluded.arguments_differ, excluded.rescheduled
  )
