-- name: increment
#!lua flags=allow-oom
-- Add to totals.
-- KEYS: metrics
-- ARGV: clock; names and amounts in turn
-- returns: nothing
for i = 2, #ARGV, 2 do
  redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1])
end
-- name: heartbeat
#!lua flags=allow-oom
-- Record the heartbeat of a worker, and delete stale workers.
-- KEYS: workers, registrations
-- ARGV: clock, node, lasts (seconds; 0 removes the worker), registration (JSON)
-- returns: nothing
local now = clock()
local node, expires_at, registration = ARGV[2], now + number(ARGV[3]), ARGV[4]
redis.call('HSET', KEYS[1], node, format_time(now) .. ' ' .. format_time(expires_at))
redis.call('HSET', KEYS[2], node, registration)
for each, heartbeat in pairs(read_hash(KEYS[1])) do
  if tonumber(string.match(heartbeat, ' (.*)')) <= now then
    redis.call('HDEL', KEYS[1], each)
    redis.call('HDEL', KEYS[2], each)
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
