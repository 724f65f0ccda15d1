#!lua flags=no-writes
-- Look which jobs match, without reading the whole of their rows, which can be large.
-- KEYS: the jobs
-- ARGV: states (words, empty for all), task, identity, submitter, reason (a part of it), each of which need not be sent
-- returns: for each key the state of the job; "" for one that does not match, or is not there
local reason, answers = arg.reason and string.lower(arg.reason), {}
for i, key in ipairs(KEYS) do
  local look = redis.call('HMGET', key, 'state', 'task', 'identity', 'submitter', 'reason')
  local state, submitter = look[1], look[4] or ''
  local matches = state
    and (arg.states == '' or has(arg.states, state))
    and (not arg.task or arg.task == look[2])
    and (not arg.identity or arg.identity == look[3])
    and (not arg.submitter or arg.submitter == submitter)
    and (not reason or string.find(string.lower(look[5] or ''), reason, 1, true))
  answers[i] = matches and state or ''
end
return answers
