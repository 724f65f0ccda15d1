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
-- name: is_waiting
-- The condition of the index of waiting jobs, which also has ended ones whose canvas is to be notified.
-- in: a job
lease_until is null and (finished_at is null or canvas_pending)
-- name: is_offered
-- The condition of the index of the jobs that workers take from the ledger when they are due.
-- in: a job
published_at is null and lease_until is null and finished_at is null and not queued_next and follows_id is null
    and substr(route, 1, 1) not in ('', '[')
-- name: places
-- The ranks of the jobs that are offered to the workers of queues, found one by one in the index.
-- in: :queues (JSON array)
places (queue, rank) as (
  select value, (
    select priority_rank from jobs where route = value and {is_offered} order by priority_rank desc limit 1
  )
  from json_each(:queues)
  union all
  select queue, (
    select priority_rank from jobs
    where route = queue and {is_offered} and priority_rank < rank order by priority_rank desc limit 1
  )
  from places where rank is not null
)
-- name: queue
-- in: a job, of whose route `Route.decode` returns the queue
iif(substr(route, 1, 1) = '[', json_extract(route, '$[2]'), route)
-- name: filters
-- One term for the planner, which would take every one more for a reason to expect fewer rows.
-- in: :states (JSON array, empty for all) :tasks (JSON array) :task :identity :submitter :queue :node :reason (a part of it)
--     :arguments (a part of their JSON) :tag (null for any) :unsettled
((:states = '[]' or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:tasks is null or task in (select value from json_each(:tasks)))
  and (:identity is null or identity = :identity)
  and (:submitter is null or submitter = :submitter)
  and (:queue is null or {queue} = :queue)
  and (:node is null or node = :node)
  and (:reason is null or instr(lower(reason), lower(:reason)) > 0)
  and (not :unsettled or finished_at is null or canvas_pending)
  and (:arguments is null or instr(substr(payload, max(instr(payload, '"args": '), 1)), :arguments) > 0)
  and (:tag is null
    or instr(char(10) || tag_lines || char(10), char(10) || :tag || char(10)) > 0 and instr(:tag, char(10)) = 0)
) is true
-- name: time_range
-- in: :since :until (null for any)
created_at >= coalesce(:since, -9e999) and created_at < coalesce(:until, 9e999)
-- name: position
-- The time range from the position on. SQLite uses one upper bound of an index.
-- in: :since :until :before :before_id (null for any)
created_at >= coalesce(:since, -9e999)
  and created_at <= min(coalesce(:until, 9e999), coalesce(:before, 9e999))
  and (:until is null or created_at < :until)
  and (:before is null or created_at < :before or id < :before_id)
-- name: narrowed
-- The condition by which an index finds the jobs: there is none, unless a variant of the statement has another one.
-- in: nothing
true
-- name: of_submitter
-- SQLite uses the submitter's index only for a condition that holds for every value.
-- in: :submitter
submitter = :submitter and submitter <> ''
-- name: of_state
-- in: :state (one of those that have an index)
state = :state and (state = 'retrying' or state = 'failed' or state = 'canceled')
-- name: of_runs
-- in: nothing: running jobs are few, and are sorted
rowid in (select rowid from jobs where lease_until is not null)
-- name: page
-- in: the filters, the position, :limit :offset
{filters} and {position}
order by created_at desc, id desc
limit :limit offset :offset
