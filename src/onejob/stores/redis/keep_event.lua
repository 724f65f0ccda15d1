#!lua
-- Store an event, unless it is stored, and extend the time for which it is needed.
-- KEYS: event
-- ARGV: clock, keep_for (seconds), body (absent: only extend)
-- returns: the stored body
-- refusal: nil when no event is stored
local key = KEYS[1]
local now, keep_for = clock(), number(ARGV[2])
local event = read_hash(key)
local body, ends = ARGV[3], now + keep_for
if event['until'] and tonumber(event['until']) > now then
  body, ends = event.body, math.max(ends, event['until'])
end
if not body then
  return nil
end
redis.call('HSET', key, 'body', body, 'until', format_time(ends))
-- The TTL is longer than `until`, which alone decides: a clock may be set back. Redis refuses TTLs that are too long.
redis.call('EXPIRE', key, format_integer(math.ceil(math.min(ends - now, 2 ^ 31) + 3600)))
return body
