#!lua
-- Count one use of a name, unless so many were counted in the window that began with the first of them.
-- KEYS: quota
-- ARGV: nonce, limit, period (seconds)
-- returns: whether the use is "counted", also when it was by this request before; how many were; when the window ends;
--          how many seconds are left until then
local key = KEYS[1]
local limit, period, now = number('limit'), number('period'), clock()

local quota = hash(key)
if not quota['until'] or tonumber(quota['until']) <= now then
  quota = { used = '0', ['until'] = text(now + period) }
end
local counted = known(quota, arg.nonce)
if not counted and tonumber(quota.used) < limit then
  counted = true
  quota.used, quota.requests = whole(quota.used + 1), remember(quota, arg.nonce)
  redis.call('HSET', key, 'used', quota.used, 'until', quota['until'], 'requests', quota.requests)
  -- Later than `until`, which alone decides: a clock may be set back. And Redis refuses what is too far away.
  redis.call('EXPIRE', key, whole(math.ceil(math.min(period, 2 ^ 31) + 3600)))
end
return { counted and '1' or '0', quota.used, quota['until'], text(quota['until'] - now) }
