#!lua flags=allow-oom
-- Consume `amount` of a quota; a negative amount refunds.
-- KEYS: quota
-- ARGV: clock, nonce, limit, amount, period (seconds), until (only in the window that ends then; '' for any)
-- returns: whether this request is counted (also when it is repeated); how many uses are; when the window ends; the
--          seconds until then
-- refusal: a use that would leave the range from 0 to the limit is not counted; a request is counted once
local key = KEYS[1]
local nonce, limit, amount, period = ARGV[2], number(ARGV[3]), number(ARGV[4]), number(ARGV[5])
local only_until = number(ARGV[6])
local now = clock()

local quota = read_hash(key)
if not quota['until'] or tonumber(quota['until']) <= now then
  quota = { used = '0', ['until'] = format_time(now + period) }
end
local counted, used = is_repeated(quota.requests, nonce), quota.used + amount
local left = quota['until'] - now
if not counted and used >= 0 and used <= math.max(limit, quota.used)
  and (not only_until or only_until == tonumber(quota['until']))
then
  counted = true
  quota.used, quota.requests = format_integer(used), add_request(quota.requests, nonce)
  redis.call('HSET', key, 'used', quota.used, 'until', quota['until'], 'requests', quota.requests)
  -- The TTL is longer than `until`, which alone decides: a clock may be set back. Redis refuses TTLs that are too long.
  redis.call('EXPIRE', key, format_integer(math.ceil(math.min(left, 2 ^ 31) + 3600)))
end
return { counted and '1' or '0', quota.used, quota['until'], format_time(left) }
