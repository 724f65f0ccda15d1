#!lua flags=allow-oom
-- Take the jobs whose alarm has rung, and put their alarm off.
-- KEYS: wake
-- ARGV: limit, hold (seconds)
-- returns: the ids of the jobs, the longest due first; their rows are other keys, which the client reads next
local wake = KEYS[1]
local now = moment()
local later = text(now + number('hold'))
local ids = redis.call('ZRANGEBYSCORE', wake, '-inf', text(now), 'LIMIT', 0, arg.limit)
for _, id in ipairs(ids) do
  redis.call('ZADD', wake, later, id)
end
return ids
