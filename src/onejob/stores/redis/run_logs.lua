-- name: keep_run_log
#!lua flags=allow-oom
-- Write the log of the latest attempt, in place of what it was; delete that of an old attempt.
-- KEYS: job, logs
-- ARGV: clock, token, text, kept (how many attempts have a log)
-- returns: 1
-- refusal: nil when the token is stale
local row = read_row(KEYS[1])
if not row or (row[TOKEN] or '0') ~= ARGV[2] then
  return nil
end
redis.call('HSET', KEYS[2], row[ATTEMPT] or '0', ARGV[3])
for _, attempt in ipairs(redis.call('HKEYS', KEYS[2])) do
  if tonumber(attempt) <= tonumber(row[ATTEMPT] or 0) - tonumber(ARGV[4]) then
    redis.call('HDEL', KEYS[2], attempt)
  end
end
return 1
