#!lua flags=allow-oom
-- Keep a run's progress.
-- KEYS: job
-- ARGV: token, sources (words), progress
-- returns: what has been asked of the run
-- refusal: nil when the token is stale
local key = KEYS[1]
local state, token, cancel = unpack(redis.call('HMGET', key, 'state', 'token', 'cancel'))
if token ~= arg.token or not has(arg.sources, state) then
  return nil
end
write(key, {}, { progress = arg.progress })
return cancel
