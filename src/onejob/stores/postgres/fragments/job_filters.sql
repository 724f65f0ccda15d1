-- name: queue
-- in: a job, of whose route `Route.decode` returns the queue
case when left(route, 1) = '[' then cast(route as json) ->> 2 else route end
-- name: filters
-- in: :states (array, empty for all) :tasks (array, null for any) :task :identity :submitter :queue :node :reason (a part
--     of it) :arguments (a part of their JSON) :tag :parked_on (null for any) :unsettled
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
  and (cast(:parked_on as text) is null or parked_on = cast(:parked_on as text))
  and (cast(:tag as text) is null or cast(:tag as text) = any(string_to_array(tag_lines, chr(10))))
-- name: time_range
-- in: :since :until (null for any)
created_at >= coalesce(cast(:since as float8), '-infinity') and created_at < coalesce(cast(:until as float8), 'infinity')
-- name: narrowed
-- The condition for the listed jobs: none, unless a variant of the statement has a condition that an index applies.
-- in: nothing
onejob.jobs
-- name: of_submitter
-- in: :submitter (not "")
(select jobs.* from onejob.jobs where submitter = cast(:submitter as text) and submitter <> '') as jobs
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
