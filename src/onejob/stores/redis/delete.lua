#!lua flags=allow-oom
-- Remove a job with all that belongs to it; also what a lost row (evicted, deleted by hand) left behind.
-- KEYS: job, steps, history, followers, wake, jobs, following
-- ARGV: job_id, sources (words)
-- returns: 1
-- refusal: 0 when there is no such job, when it is in another state or holds its identity
local key, steps, history, followers, wake, jobs, following = unpack(KEYS)
local state, holds = unpack(redis.call('HMGET', key, 'state', 'holds'))
if state and (holds == '1' or not has(arg.sources, state)) then
  return 0
end
redis.call('UNLINK', key, steps, history, followers)
redis.call('ZREM', wake, arg.job_id)
redis.call('ZREM', jobs, arg.job_id)
redis.call('HDEL', following, arg.job_id)
return state and 1 or 0
