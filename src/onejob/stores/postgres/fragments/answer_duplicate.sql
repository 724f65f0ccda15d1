-- The rules of `onejob.jobs.on_duplicate.resolve`, applied to the locked row, which may be newer than the
-- statement's snapshot: the holder of the identity, or the job that is queued next.
(
    outcome, rescheduled, fingerprint, payload, route, tag_lines, limit_keys, expires_at, run_at, priority_rank, wake_at,
    published_at, key_retained_until
  ) = (
    select
      answer.outcome,
      reschedules,
      case when takes_over then excluded.fingerprint else jobs.fingerprint end,
      case when takes_over then excluded.payload else jobs.payload end,
      case when takes_over then excluded.route else jobs.route end,
      case when takes_over then excluded.tag_lines else jobs.tag_lines end,
      case when takes_over then excluded.limit_keys else jobs.limit_keys end,
      new_expires_at,
      new_run_at,
      new_rank,
      case
        when not changes then jobs.wake_at
        when (reschedules or new_run_at > locked_at) and not jobs.queued_next
          then least(
            greatest(new_run_at, case when new_run_at <= locked_at then locked_at + cast(:wake_after as float8) end),
            new_expires_at
          )
        else least(jobs.wake_at, new_expires_at)
      end,
      case
        when not reschedules or jobs.queued_next then jobs.published_at
        when new_run_at > locked_at then null
        -- Workers take an offered job if its route, which may be the submission's, is the name of a queue.
        when cast(:is_offered as boolean) and left(case when takes_over then excluded.route else jobs.route end, 1) not in ('', '[')
          then null
        when cast(:is_offered as boolean) or cast(:is_sent as boolean) then locked_at
      end,
      case when answer.outcome in ('rejected', 'queued_next') then jobs.key_retained_until
        else greatest(jobs.key_retained_until, excluded.key_retained_until) end
    from (
      -- After a wait for the lock, the statement's time may be earlier than the row's.
      select
        coalesce(cast(:now as float8), extract(epoch from clock_timestamp())::float8),
        jobs.attempt = 0 and jobs.finished_at is null and not cast(:rejects as boolean)
    ) as row_state (locked_at, is_waiting)
    cross join lateral (
      select
        is_waiting and cast(:replaces as boolean) and jobs.fingerprint <> excluded.fingerprint,
        case when is_waiting
          then least(
            locked_at + cast(:delay as float8), greatest(jobs.run_at, jobs.created_at + cast(:max_wait as float8))
          )
          else jobs.run_at end,
        case when is_waiting then greatest(jobs.priority_rank, excluded.priority_rank) else jobs.priority_rank end
    ) as changed (takes_over, new_run_at, new_rank)
    cross join lateral (
      select
        (new_run_at, new_rank) <> (jobs.run_at, jobs.priority_rank),
        case
          when takes_over then excluded.expires_at
          when is_waiting and jobs.expires_at > locked_at
            and coalesce(excluded.expires_at > jobs.expires_at, excluded.expires_at is null) then excluded.expires_at
          else jobs.expires_at
        end,
        case
          -- A concurrent transaction wrote this id as the job that is queued next, and the duplicate was counted on the
          -- holder again. Inserting the first history entry twice is a unique violation, which rolls that back; a
          -- user's transaction must not fail because of it.
          when jobs.id = excluded.id and not cast(:joins as boolean) then 'queued_next'
          when cast(:rejects as boolean) then 'rejected'
          when jobs.finished_at is not null then 'replayed'
          when takes_over then 'replaced'
          when not is_waiting and cast(:queue_next as boolean) then 'queued_next'
          else 'attached'
        end
    ) as answer (reschedules, new_expires_at, outcome)
    cross join lateral (
      select reschedules or takes_over or new_expires_at is distinct from jobs.expires_at
    ) as compared (changes)
  )
