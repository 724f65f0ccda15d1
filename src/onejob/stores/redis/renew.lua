#!lua flags=allow-oom
-- Extend many leases.
-- KEYS: leases, then one job per claim
-- ARGV: nonces (JSON array, one per job), sources (words)
-- returns: one value per claim: the job's `cancel`
-- refusal: "" for a claim that is no longer the job's, or a job that is not in the sources
local leases = KEYS[1]
local now = clock()
local cancels = {}
for i, nonce in ipairs(cjson.decode(arg.nonces)) do
  local key = KEYS[i + 1]
  local id, claim, state, lease, cancel = unpack(redis.call('HMGET', key, 'id', 'claim', 'state', 'lease', 'cancel'))
  if id and claim == nonce and contains(arg.sources, state) then
    local lease_until = format_time(now + tonumber(lease))
    redis.call('HSET', key, 'lease_until', lease_until)
    redis.call('ZADD', leases, lease_until, id)
    cancels[i] = cancel
  else
    cancels[i] = ''
  end
end
return cancels
