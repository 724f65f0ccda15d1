-- name: increment
#!lua flags=allow-oom
-- Add to totals.
-- KEYS: metrics
-- ARGV: amounts (JSON array of names and amounts in turn, all texts)
-- returns: nothing
local amounts = cjson.decode(arg.amounts)
for i = 1, #amounts, 2 do
  redis.call('HINCRBYFLOAT', KEYS[1], amounts[i], amounts[i + 1])
end
-- name: heartbeat
#!lua flags=allow-oom
-- Record the heartbeat of a worker, and delete stale workers.
-- KEYS: workers, registrations
-- ARGV: node, lasts (seconds; 0 removes the worker), registration (JSON)
-- returns: nothing
local now = clock()
local expires_at = now + number('lasts')
redis.call('HSET', KEYS[1], arg.node, format_time(now) .. ' ' .. format_time(expires_at))
redis.call('HSET', KEYS[2], arg.node, arg.registration)
for node, heartbeat in pairs(read_hash(KEYS[1])) do
  if tonumber(string.match(heartbeat, ' (.*)')) <= now then
    redis.call('HDEL', KEYS[1], node)
    redis.call('HDEL', KEYS[2], node)
  end
end
-- name: workers
#!lua flags=no-writes
-- Return the workers whose heartbeats have not expired.
-- KEYS: workers, registrations
-- returns: name, time of the latest heartbeat and registration of each, in turn
local now = clock()
local flat = {}
for node, heartbeat in pairs(read_hash(KEYS[1])) do
  local seen_at, expires_at = string.match(heartbeat, '(.*) (.*)')
  if tonumber(expires_at) > now then
    flat[#flat + 1] = node
    flat[#flat + 1] = seen_at
    flat[#flat + 1] = redis.call('HGET', KEYS[2], node) or '{}'
  end
end
return flat
