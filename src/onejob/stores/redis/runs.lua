-- name: report
#!lua flags=allow-oom
-- Store a run's progress.
-- KEYS: job
-- ARGV: token, sources (words), progress
-- returns: the job's `cancel`
-- refusal: nil when the token is stale
local key = KEYS[1]
local state, token, cancel = unpack(redis.call('HMGET', key, 'state', 'token', 'cancel'))
if token ~= arg.token or not contains(arg.sources, state) then
  return nil
end
write_job(key, {}, { progress = arg.progress })
return cancel
-- name: keep_step
#!lua flags=allow-oom
-- Memoise a step; an earlier value wins.
-- KEYS: job, steps
-- ARGV: token, sources (words), name, value
-- returns: the stored value
-- refusal: nil when the token is stale
local key, steps = unpack(KEYS)
local state, token = unpack(redis.call('HMGET', key, 'state', 'token'))
if token ~= arg.token or not contains(arg.sources, state) then
  return nil
end
redis.call('HSETNX', steps, arg.name, arg.value)
return redis.call('HGET', steps, arg.name)
