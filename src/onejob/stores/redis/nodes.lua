#!lua flags=no-writes
-- Return the nodes whose heartbeat last.
-- KEYS: nodes
-- returns: names and the times of their latest signs, in turn
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
