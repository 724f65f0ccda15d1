-- name: increment
#!lua flags=allow-oom
-- Add to totals, and to the current bucket of each period. The keys of the buckets begin with keys of this script.
-- KEYS: metrics; of each period the prefix of its buckets
-- ARGV: clock; seconds and kept_for (seconds) of each period; how many texts the totals are; names and amounts in turn,
--       those of the totals first
-- returns: nothing
local now = clock()
local buckets, first = {}, 2 * #KEYS + 1
for i = 2, #KEYS do
  local seconds, kept_for = number(ARGV[2 * i - 2]), number(ARGV[2 * i - 1])
  -- The TTL is an hour longer than the bucket is kept: a clock may be set back.
  buckets[KEYS[i] .. format_integer(math.floor(now / seconds) * seconds)] = format_integer(kept_for + 3600)
end
local last_total = first - 1 + number(ARGV[2 * #KEYS])
for i = first, last_total, 2 do
  redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1])
end
if last_total < #ARGV then
  for bucket, expires_in in pairs(buckets) do
    for i = last_total + 1, #ARGV, 2 do
      redis.call('HINCRBYFLOAT', bucket, ARGV[i], ARGV[i + 1])
    end
    redis.call('EXPIRE', bucket, expires_in)
  end
end
-- name: series
#!lua flags=no-writes
-- Return the buckets of a period, oldest first. Their keys begin with a key of this script.
-- KEYS: the prefix of the buckets
-- ARGV: clock, seconds, kept_for (seconds), since
-- returns: the begin of each bucket, and the list of its names and amounts, in turn
local now = clock()
local seconds, kept_for, since = number(ARGV[2]), number(ARGV[3]), number(ARGV[4])
local first = math.max(math.ceil(since / seconds), math.floor((now - kept_for) / seconds) + 1)
local found = {}
for index = first, math.floor(now / seconds) do
  local start = format_integer(index * seconds)
  local amounts = redis.call('HGETALL', KEYS[1] .. start)
  if amounts[1] then
    found[#found + 1] = start
    found[#found + 1] = amounts
  end
end
return found
-- name: heartbeat
#!lua flags=allow-oom
-- Record the heartbeat of a worker.
-- KEYS: workers, registrations
-- ARGV: clock, node, lasts (seconds; 0 removes the worker), registration (JSON)
-- returns: nothing
local now = clock()
local node, expires_at, registration = ARGV[2], now + number(ARGV[3]), ARGV[4]
if expires_at <= now then
  redis.call('HDEL', KEYS[1], node)
  redis.call('HDEL', KEYS[2], node)
  return {}
end
redis.call('HSET', KEYS[1], node, format_time(now) .. ' ' .. format_time(expires_at))
redis.call('HSET', KEYS[2], node, registration)
return {}
-- name: workers
#!lua flags=no-writes
-- Return the workers whose heartbeats have not expired.
-- KEYS: workers, registrations
-- returns: name, time of the latest heartbeat and registration of each, in turn
return list_workers(KEYS[1], KEYS[2], false, clock())
-- name: take_dead_workers
#!lua flags=allow-oom
-- Remove the workers whose heartbeats have expired.
-- KEYS: workers, registrations
-- ARGV: clock
-- returns: as `workers`
local dead = list_workers(KEYS[1], KEYS[2], true, clock())
for i = 1, #dead, 3 do
  redis.call('HDEL', KEYS[1], dead[i])
  redis.call('HDEL', KEYS[2], dead[i])
end
return dead
