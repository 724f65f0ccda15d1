-- name: put_schedule
#!lua
-- Compare and set: the stored nonce must be the expected one, or the new one, which a repeated call finds.
-- KEYS: schedules
-- ARGV: clock, name, nonce, state (JSON), expected (a nonce; '': no schedule has this name)
-- returns: 1
-- refusal: nil when another nonce is stored
local name, nonce, state, expected = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local stored = string.match(redis.call('HGET', KEYS[1], name) or '', '^%S*')
if stored ~= expected and stored ~= nonce then
  return nil
end
redis.call('HSET', KEYS[1], name, nonce .. ' ' .. state)
return 1
-- name: delete_schedule
#!lua flags=allow-oom
-- Delete a schedule, unless another nonce is stored.
-- KEYS: schedules
-- ARGV: clock, name, expected (a nonce)
-- returns: nothing
local name, expected = ARGV[2], ARGV[3]
if string.match(redis.call('HGET', KEYS[1], name) or '', '^%S*') == expected then
  redis.call('HDEL', KEYS[1], name)
end
