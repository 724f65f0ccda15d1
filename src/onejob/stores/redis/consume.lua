#!lua flags=allow-oom
-- Count `amount` uses of a name, or give them back when it is negative.
-- KEYS: quota
-- ARGV: nonce, limit, amount, period (seconds), until (only in the window that ends then)
-- returns: whether this request was "counted", also before; how many uses were; when the window ends; how many seconds
--          are left until then
-- refusal: the count stays within 0 and the limit, and a request counts once
local key = KEYS[1]
local limit, amount, period, till, now = number('limit'), number('amount'), number('period'), number('until'), clock()

local quota = hash(key)
if not quota['until'] or tonumber(quota['until']) <= now then
  quota = { used = '0', ['until'] = text(now + period) }
end
local counted, used = known(quota, arg.nonce), quota.used + amount
local left = quota['until'] - now
if not counted and used >= 0 and used <= math.max(limit, quota.used) and (not till or till == tonumber(quota['until'])) then
  counted = true
  quota.used, quota.requests = whole(used), remember(quota, arg.nonce)
  redis.call('HSET', key, 'used', quota.used, 'until', quota['until'], 'requests', quota.requests)
  -- Later than `until`, which alone decides: a clock may be set back. And Redis refuses what is too far away.
  redis.call('EXPIRE', key, whole(math.ceil(math.min(left, 2 ^ 31) + 3600)))
end
return { counted and '1' or '0', quota.used, quota['until'], text(left) }
