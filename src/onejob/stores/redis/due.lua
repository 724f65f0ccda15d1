#!lua flags=allow-oom
-- Take the jobs whose alarm has rung, and put their alarm off.
-- KEYS: wake
-- ARGV: limit, hold (seconds)
-- returns: their new alarm and their ids, the longest due first. Their rows are other keys, which the client reads next;
--   a row whose alarm is another by then was changed meanwhile, and is no longer this sweeper's
local wake = KEYS[1]
local now = moment()
local later = text(now + number('hold'))
local ids = redis.call('ZRANGEBYSCORE', wake, '-inf', text(now), 'LIMIT', 0, arg.limit)
for _, id in ipairs(ids) do
  redis.call('ZADD', wake, later, id)
end
return { later, ids }
