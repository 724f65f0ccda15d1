-- name: queue
-- in: a job, of whose route `Route.decode` returns the queue
iif(substr(route, 1, 1) = '[', json_extract(route, '$[2]'), route)
-- name: filters
-- The filters as one term for the planner, which would expect fewer rows for each further term.
-- in: :states (JSON array, empty for all) :tasks (JSON array) :task :identity :submitter :queue :node :reason (a part of it)
--     :arguments (a part of their JSON) :tag :parked_on (null for any) :unsettled
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
  and (:parked_on is null or parked_on = :parked_on)
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
-- The condition by which an index finds the jobs: none, unless a variant of the statement has a condition.
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
