#!lua flags=allow-oom
-- Take back one use of a name, in the window in which it was counted.
-- KEYS: quota
-- ARGV: nonce, until
-- refusal: nothing happens when that window is over, or when this request took one back before
local key, till = KEYS[1], number('until')

local quota = hash(key)
if tonumber(quota['until']) == till and tonumber(quota.used) > 0 and not known(quota, arg.nonce) then
  redis.call('HSET', key, 'used', whole(quota.used - 1), 'requests', remember(quota, arg.nonce))
end
return {}
