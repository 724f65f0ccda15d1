#!lua flags=allow-oom
-- Take the jobs whose alarm has rung, and put their alarm off: first runs whose lease is over, then the others.
-- KEYS: wake, leases
-- ARGV: limit, hold (seconds)
-- returns: their new alarm and their ids, the longest due first. Their rows are other keys, which the client reads next;
--   a row whose alarm is another by then was changed meanwhile, and is no longer this sweeper's
local wake, leases = unpack(KEYS)
local limit, hold = number('limit'), number('hold')
local now = clock()
local later, ids, taken = text(now + hold), {}, {}

local function take(from, count)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', from, '-inf', text(now), 'LIMIT', 0, whole(count))) do
    if not taken[id] then
      ids[#ids + 1], taken[id] = id, true
    end
  end
end

take(leases, limit)
for _, id in ipairs(ids) do
  redis.call('ZADD', leases, later, id)
  redis.call('ZADD', wake, later, id)
end
local lost = #ids
take(wake, limit - lost)
for i = lost + 1, #ids do
  redis.call('ZADD', wake, later, ids[i])
end
return { later, ids }
