#!lua flags=allow-oom
-- Keep a node's heartbeat, and remove those that are over.
-- KEYS: nodes
-- ARGV: node, lasts (seconds; 0 removes the node's)
-- returns: nothing
local now = clock()
local till = now + number('lasts')
redis.call('HSET', KEYS[1], arg.node, text(now) .. ' ' .. text(till))
for node, sign in pairs(hash(KEYS[1])) do
  if tonumber(string.match(sign, ' (.*)')) <= now then
    redis.call('HDEL', KEYS[1], node)
  end
end
