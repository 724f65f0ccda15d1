-- name: put_result
#!lua
-- Store a result in place of an earlier result of its name.
-- KEYS: result
-- ARGV: clock, keep_for (seconds), body
-- returns: nothing
local key, now, keep_for = KEYS[1], clock(), number(ARGV[2])
redis.call('HSET', key, 'body', ARGV[3], 'until', format_time(now + keep_for))
-- The TTL is longer than `until`, which alone decides: a clock may be set back. Redis refuses TTLs that are too long.
redis.call('EXPIRE', key, format_integer(math.ceil(math.min(keep_for, 2 ^ 31) + 3600)))
-- name: results
#!lua flags=no-writes
-- Read results.
-- KEYS: the results
-- ARGV: clock
-- returns: the body of each result, or "" if it is not stored
local now, bodies = clock(), {}
for i, key in ipairs(KEYS) do
  local result = redis.call('HMGET', key, 'body', 'until')
  bodies[i] = result[2] and tonumber(result[2]) > now and result[1] or ''
end
return bodies
-- name: delete_result
#!lua flags=allow-oom
-- Delete a result.
-- KEYS: result
-- returns: nothing
redis.call('DEL', KEYS[1])
