-- name: clock
-- in: :now (null for the server's clock)
clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
)
-- name: unsynchronized_clock
-- The clock of a statement whose commit need not wait for the disk, because forgetting it in a crash of the server is
-- harmless. The setting holds until the end of the transaction, so all of its statements must be of this kind; a user's
-- transaction (:joins) keeps its own.
clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now,
    case when not cast(:joins as boolean) then set_config('synchronous_commit', 'off', true) end
)
-- name: is_plain
-- Whether a route is the name of a queue, whose workers can take the job from the ledger.
-- in: a job
left(jobs.route, 1) not in ('', '[')
-- name: is_offered
-- The condition of the index of the jobs that workers take from the ledger when they are due.
-- in: a job
jobs.published_at is null and jobs.lease_until is null and jobs.finished_at is null and not jobs.queued_next
    and jobs.follows_id is null and {is_plain}
-- name: notify_workers
-- Wake the workers of its queue, with the commit, unless they look for themselves before it is due.
-- in: a job that was just written, :due_channel
case
    when {is_offered} and jobs.run_at
      <= coalesce(cast(:now as float8), extract(epoch from clock_timestamp())::float8) + {look_interval}
      then pg_notify(cast(:due_channel as text), jobs.route || E'\njob')
  end
-- name: notify_consumers
-- Wake the consumers of a queue that has got messages, with the commit.
-- in: queue, :due_channel
pg_notify(cast(:due_channel as text), queue || E'\nmessage')
-- name: places
-- The ranks of the jobs that are offered to the workers of queues, found one by one in the index.
-- in: :queues (array)
places as (
  select given.queue, (
    select priority_rank from onejob.jobs as jobs
    where jobs.route = given.queue and {is_offered} order by priority_rank desc limit 1
  ) as rank
  from unnest((select cast(:queues as text[]))) as given (queue)
  union all
  select places.queue, (
    select priority_rank from onejob.jobs as jobs
    where jobs.route = places.queue and {is_offered} and priority_rank < places.rank order by priority_rank desc limit 1
  )
  from places where places.rank is not null
)
-- name: given
-- in: the fields of the submission
given as (select {given_fields})
-- name: given_many
-- in: :submissions (JSON: an array of objects with the same fields), in a quarter of the client's time for arrays
given as (select * from json_to_recordset(cast(:submissions as json)) as given ({given_record}))
-- name: holder_columns
{new_job_columns}, holds_identity, created_at, run_at, expires_at, published_at, wake_at, reason
-- name: holder_values
-- in: `given`, now, :wake_after (seconds until a sweep processes a job that is due at once; 0: a sweep publishes it),
--     :offers (whether workers take it from the ledger)
{new_job_values}, true, now, now + given.delay, now + given.expires_in,
    case
      when given.delay <= 0 and cast(:wake_after as float8) > 0 and not (cast(:offers as boolean) and left(given.route, 1) not in ('', '['))
        then now
    end,
    least(
      now + case when given.delay > 0 then given.delay else cast(:wake_after as float8) end,
      now + given.expires_in
    ), 'submitted'
-- name: insert_given
-- variants: charged
-- in: `given`, `clock`; charged: `exceeded`
insert into onejob.jobs ({holder_columns})
select {holder_values}
from given, clock
/* charged: where not exists (select from exceeded) */
on conflict do nothing
returning id, created_at, {notify_workers}
-- name: key_retained_until
case when cast(:key as text) is not null then now + cast(:key_for as float8) end
-- name: history_columns
job_id, seq, at, event, state, attempt, node, detail
-- name: answer_duplicate
-- The rules of `onejob.jobs.on_duplicate.resolve`, applied to the locked row, which may be newer than the
-- statement's snapshot: the holder of the identity, or the job that is queued next.
(
    outcome, rescheduled, fingerprint, payload, route, tag_lines, expires_at, run_at, priority_rank, wake_at, published_at,
    key_retained_until
  ) = (
    select
      answer.outcome,
      reschedules,
      case when takes_over then excluded.fingerprint else jobs.fingerprint end,
      case when takes_over then excluded.payload else jobs.payload end,
      case when takes_over then excluded.route else jobs.route end,
      case when takes_over then excluded.tag_lines else jobs.tag_lines end,
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
        when new_run_at <= locked_at and not (cast(:offers as boolean) and {is_plain}) then locked_at
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
-- name: keep_key
-- Store the answering job for the idempotency key; release the key of a submission that no job answers.
kept_key as (
  insert into onejob.keys as keys (key, job_id, fingerprint, until)
  select :key, id, :fingerprint, now + cast(:key_for as float8) from answer, clock
  where cast(:key as text) is not null and outcome <> 'rejected' and not exists (select from keyed)
  on conflict (key) do update set job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until
  where keys.until <= (select now from clock)
),
released_key as (
  delete from onejob.keys
  where key = cast(:key as text) and job_id is null and not exists (select from answer where outcome <> 'rejected')
)
-- name: start_run
-- in: now, :nonce :node :target
state = :target,
    token = greatest(jobs.token + 1, (now * 1000000)::bigint),
    claim = :nonce,
    node = :node,
    attempt = jobs.attempt + 1,
    lease_until = now + jobs.lease,
    wake_at = now + jobs.lease,
    started_at = now,
    expires_at = null,
    published = 0,
    published_at = null,
    publish_error = '',
    reason = 'running on ' || cast(:node as text),
    requests = left(cast(:nonce as text) || ' ' || jobs.requests, 136)
-- name: is_claimable
-- in: now, :nonce :sources (array)
jobs.state = any(cast(:sources as text[]))
    and jobs.run_at <= now
    and (jobs.expires_at is null or jobs.expires_at > now)
    and jobs.cancel = 0
    and not jobs.queued_next
    and strpos(' ' || jobs.requests, ' ' || cast(:nonce as text) || ' ') = 0
-- name: is_waiting
-- The condition of the index of waiting jobs, which also has ended ones whose canvas is to be notified.
-- in: a job
lease_until is null and (finished_at is null or canvas_pending)
-- name: queue
-- in: a job, of whose route `Route.decode` returns the queue
case when left(route, 1) = '[' then cast(route as json) ->> 2 else route end
-- name: filters
-- in: :states (array, empty for all) :tasks (array, null for any) :task :identity :submitter :queue :node :reason (a part
--     of it) :arguments (a part of their JSON) :tag (null for any) :unsettled
(cast(:states as text[]) = '{}' or state = any(cast(:states as text[])))
  and (cast(:task as text) is null or task = :task)
  and (cast(:tasks as text[]) is null or task = any(cast(:tasks as text[])))
  and (cast(:identity as text) is null or identity = :identity)
  and (cast(:submitter as text) is null or submitter = :submitter)
  and (cast(:queue as text) is null or {queue} = :queue)
  and (cast(:node as text) is null or node = :node)
  and (cast(:reason as text) is null or strpos(lower(reason collate "C"), lower(cast(:reason as text) collate "C")) > 0)
  and (not cast(:unsettled as boolean) or finished_at is null or canvas_pending)
  and (cast(:arguments as text) is null
    or strpos(substr(payload, greatest(strpos(payload, '"args": '), 1)), cast(:arguments as text)) > 0)
  and (cast(:tag as text) is null or cast(:tag as text) = any(string_to_array(tag_lines, chr(10))))
-- name: time_range
-- in: :since :until (null for any)
created_at >= coalesce(cast(:since as float8), '-infinity') and created_at < coalesce(cast(:until as float8), 'infinity')
-- name: narrowed
-- The jobs that are listed: all, unless a variant of the statement has others, which an index finds.
-- in: nothing
onejob.jobs
-- name: of_state
-- in: :state (one of those that have an index)
(
  select jobs.* from onejob.jobs where state = cast(:state as text) and state in ('retrying', 'failed', 'canceled')
) as jobs
-- name: of_runs
-- Running jobs are few, and are sorted. The offset keeps the planner from the index of times.
-- in: nothing
(select jobs.* from onejob.jobs where lease_until is not null offset 0) as jobs
-- name: page
-- in: the filters, the time range, :before :before_id (null for any) :limit :offset
{filters} and {time_range}
  and (cast(:before as float8) is null
    or (created_at, id) < (cast(:before as float8), cast(:before_id as text)))
order by created_at desc, id desc
limit :limit offset :offset
-- name: quotas
-- The quotas of the submission, whose rows `lock_quotas` has locked, and the first one that is used up, as JSON: its
-- number, when its window ends, and in how many seconds.
-- in: :charges (JSON: an array of objects with the number, the name, the limit and the period of each)
charges as (
  select * from json_to_recordset(cast(:charges as json)) as charges (
    number integer, name text, max_used bigint, period float8
  )
),
exceeded as (
  select json_build_array(number, until, until - now)::text as quota
  from onejob.quotas join charges using (name), clock
  where until > now and used >= max_used
  order by number limit 1
)
-- name: charge
-- Use each of the quotas once, under a condition on what the statement has written, which follows.
update onejob.quotas as quotas set
    used = case when quotas.until > now then quotas.used else 0 end + 1,
    until = case when quotas.until > now then quotas.until else now + charges.period end
  from charges, clock
  where quotas.name = charges.name
-- name: ready_messages
-- The first copies of messages in some queues that nobody has taken, locked. Rows that another consumer has locked are skipped.
-- in: :queues (array) :limit
ready as (
  select due.id
  from unnest((select cast(:queues as text[]))) as known (queue)
  cross join lateral (
    select id, priority from onejob.messages
    where messages.queue = known.queue and taken_until is null
      and (expires_at is null or expires_at > (select now from clock))
    order by priority desc, id
    limit (select cast(:limit as bigint))
    for update skip locked
  ) as due
  order by priority desc, id
  limit (select cast(:limit as bigint))
)
