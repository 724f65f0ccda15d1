-- name: append_audit
#!lua flags=allow-oom
-- Append an entry to the audit log, and delete the oldest entries of its kind that exceed the limits.
-- KEYS: the entries of its kind, those of the other kinds
-- ARGV: clock, entry (JSON), keep (entries), keep_for (seconds)
-- returns: nothing
local key = KEYS[1]
local now, keep, keep_for = clock(), number(ARGV[3]), number(ARGV[4])
local id = 1
for _, each in ipairs(KEYS) do
  local last = redis.call('ZREVRANGE', each, 0, 0, 'WITHSCORES')[2]
  id = math.max(id, last and tonumber(last) + 1 or 1)
end
id = format_integer(id)
redis.call('ZADD', key, id, id .. ' ' .. format_time(now) .. ' ' .. ARGV[2])
redis.call('ZREMRANGEBYRANK', key, 0, format_integer(-keep - 1))
for _ = 1, 2 do
  local first = redis.call('ZRANGE', key, 0, 0)[1]
  if tonumber(string.match(first, ' (%S+) ')) < now - keep_for then
    redis.call('ZREMRANGEBYRANK', key, 0, 0)
  end
end
-- name: audit
#!lua flags=no-writes
-- Read entries of the audit log, of each kind newest first.
-- KEYS: the entries of each kind
-- ARGV: clock, before (an id, or ''), limit, keep_for (seconds)
-- returns: id, time and JSON of each, separated by spaces
local now, limit, keep_for = clock(), number(ARGV[3]), number(ARGV[4])
local found = {}

-- Add the newest entries of a kind. An expired one may be newer than others, if the clock was set back when it was made.
local function read_entries(key)
  local newest, count = ARGV[2] == '' and '+inf' or '(' .. ARGV[2], 0
  repeat
    local entries = redis.call('ZREVRANGEBYSCORE', key, newest, '-inf', 'LIMIT', 0, ARGV[3])
    for _, entry in ipairs(entries) do
      local id, at = string.match(entry, '(%S+) (%S+) ')
      newest = '(' .. id
      if count < limit and tonumber(at) >= now - keep_for then
        found[#found + 1], count = entry, count + 1
      end
    end
  until count == limit or #entries < limit
end

for _, key in ipairs(KEYS) do
  read_entries(key)
end
return found
