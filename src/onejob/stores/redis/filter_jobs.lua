#!lua flags=no-writes
-- Filter jobs without reading their whole rows, which can be large.
-- KEYS: the jobs
-- ARGV: states (words, empty for all), tasks (JSON array), task, identity, submitter, reason (a part of it), all
--       optional; unsettled
-- returns: for each key the state of the job; "" for one that does not match or does not exist
local reason, states = arg.reason and string.lower(arg.reason), {}
local tasks = arg.tasks and {}
for _, name in ipairs(arg.tasks and cjson.decode(arg.tasks) or {}) do
  tasks[name] = true
end
for i, key in ipairs(KEYS) do
  local state, task, identity, submitter, job_reason, finished_at, canvas_pending = unpack(
    redis.call('HMGET', key, 'state', 'task', 'identity', 'submitter', 'reason', 'finished_at', 'canvas_pending')
  )
  local matches = state
    and (arg.states == '' or contains(arg.states, state))
    and (not tasks or tasks[task])
    and (not arg.task or arg.task == task)
    and (not arg.identity or arg.identity == identity)
    and (not arg.submitter or arg.submitter == (submitter or ''))
    and (not reason or string.find(string.lower(job_reason or ''), reason, 1, true))
    and (arg.unsettled == '0' or not finished_at or canvas_pending == '1')
  states[i] = matches and state or ''
end
return states
