-- name: increment
#!lua flags=allow-oom
-- Add to running totals.
-- KEYS: metrics
-- ARGV: amounts (JSON array of names and amounts in turn, all texts)
-- returns: nothing
local amounts = cjson.decode(arg.amounts)
for i = 1, #amounts, 2 do
  redis.call('HINCRBYFLOAT', KEYS[1], amounts[i], amounts[i + 1])
end
-- name: heartbeat
#!lua flags=allow-oom
-- Keep the heartbeat of a worker, and delete stale workers.
-- KEYS: nodes
-- ARGV: node, lasts (seconds; 0 removes the worker)
-- returns: nothing
local now = clock()
local till = now + number('lasts')
redis.call('HSET', KEYS[1], arg.node, text(now) .. ' ' .. text(till))
for node, sign in pairs(hash(KEYS[1])) do
  if tonumber(string.match(sign, ' (.*)')) <= now then
    redis.call('HDEL', KEYS[1], node)
  end
end
-- name: nodes
#!lua flags=no-writes
-- Return the workers whose heartbeats last.
-- KEYS: nodes
-- returns: names and the times of their latest heartbeats, in turn
local now = clock()
local flat = {}
for node, sign in pairs(hash(KEYS[1])) do
  local seen_at, till = string.match(sign, '(.*) (.*)')
  if tonumber(till) > now then
    flat[#flat + 1] = node
    flat[#flat + 1] = seen_at
  end
end
return flat
