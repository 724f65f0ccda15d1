-- Store and count a duplicate that changes nothing else: the outcome of most duplicates, at a fraction of the cost of
-- `submit`, which runs when this writes nothing. The submission has no key, follower or delay, and neither replaces nor
-- is queued next. The commit does not wait for the disk: a crash of the server may forget the record.
-- in: the fields of the submission, :submitter_limit :now
-- out: the job and the "outcome" of the duplicate; nothing when no job holds the identity any more, when the job would be
--      rescheduled or expire later, or when the request is repeated
with {unsynchronized_clock},
attached as (
  update onejob.jobs as jobs set duplicate_count = jobs.duplicate_count + 1, duplicate_nonces = {add_nonce}
  from clock
  where jobs.identity = :identity and jobs.holds_identity and coalesce({held_until} > now, true)
    and (
      cast(:rejects as boolean) or jobs.attempt > 0 or jobs.finished_at is not null
      or (
        jobs.run_at <= now and jobs.priority_rank >= cast(:priority_rank as integer)
        and coalesce(jobs.expires_at >= now + cast(:expires_in as float8), jobs.expires_at is null)
      )
    )
    and not {is_repeated}
    and not exists (select from onejob.duplicates where job_id = jobs.id and submission_nonce = :nonce)
    and not exists (select from onejob.jobs as own where own.id = :id)
  returning jobs.*, case
      when cast(:rejects as boolean) then 'rejected' when jobs.finished_at is not null then 'replayed' else 'attached'
    end as answer
),
inserted_duplicate as (
  insert into onejob.duplicates as duplicates ({duplicate_columns})
  select
    id, mod(duplicate_count - 1, {duplicate_limit}), now, :nonce, answer, id, :source, :submitter,
    :host, :fingerprint, fingerprint <> :fingerprint, false
  from attached, clock
  {replace_duplicate}
),
counted as (
  select id, duplicate_count, answer as outcome, 1 as number from attached
),
updated_counts as (
  {count_duplicates}
)
select attached.answer as outcome, attached.* from attached
