#!lua flags=allow-oom
-- Take the jobs whose `wake_at` is due, and postpone it: first runs whose lease has expired, then the others.
-- KEYS: wake, leases
-- ARGV: limit, hold (seconds)
-- returns: their new `wake_at` and their ids, the longest due first. The client reads their rows next; a row that has
--          another `wake_at` by then was changed meanwhile, and this sweeper skips it
local wake, leases = unpack(KEYS)
local limit, hold = number('limit'), number('hold')
local now = clock()
local wake_at, ids, taken = format_time(now + hold), {}, {}

local function take_from(zset, count)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', zset, '-inf', format_time(now), 'LIMIT', 0, format_integer(count))) do
    if not taken[id] then
      ids[#ids + 1], taken[id] = id, true
    end
  end
end

take_from(leases, limit)
for _, id in ipairs(ids) do
  redis.call('ZADD', leases, wake_at, id)
  redis.call('ZADD', wake, wake_at, id)
end
local expired = #ids
take_from(wake, limit - expired)
for i = expired + 1, #ids do
  redis.call('ZADD', wake, wake_at, ids[i])
end
return { wake_at, ids }
