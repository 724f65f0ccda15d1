-- name: append_audit
#!lua flags=allow-oom
-- Append an entry to the audit log, and delete up to two of the oldest that exceed its limits. Ids have no gaps.
-- KEYS: audit
-- ARGV: clock, entry (JSON), keep (entries), keep_for (seconds)
-- returns: nothing
local key = KEYS[1]
local now, keep, keep_for = clock(), number(ARGV[3]), number(ARGV[4])
local last = redis.call('LRANGE', key, -1, -1)[1]
local id = last and tonumber(string.match(last, '^%d+')) + 1 or 1
redis.call('RPUSH', key, format_integer(id) .. ' ' .. format_time(now) .. ' ' .. ARGV[2])
redis.call('LTRIM', key, format_integer(-keep), -1)
for _ = 1, 2 do
  local first = redis.call('LRANGE', key, 0, 0)[1]
  if tonumber(string.match(first, ' (%S+) ')) < now - keep_for then
    redis.call('LTRIM', key, 1, -1)
  end
end
-- name: audit
#!lua flags=no-writes
-- Return entries of the audit log, oldest first.
-- KEYS: audit
-- ARGV: clock, before (an id, or ''), limit, keep_for (seconds)
-- returns: id, time and JSON of each, separated by spaces
local key = KEYS[1]
local now, before, limit, keep_for = clock(), number(ARGV[2]), number(ARGV[3]), number(ARGV[4])
local last = redis.call('LRANGE', key, -1, -1)[1]
if not last then
  return {}
end
local newest = tonumber(string.match(last, '^%d+'))
local skipped = before and math.max(newest - before + 1, 0) or 0
local entries = redis.call('LRANGE', key, format_integer(-skipped - limit), format_integer(-skipped - 1))
local found = {}
for _, entry in ipairs(entries) do
  if tonumber(string.match(entry, ' (%S+) ')) >= now - keep_for then
    found[#found + 1] = entry
  end
end
return found
