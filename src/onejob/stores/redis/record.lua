#!lua
-- Keep the duplicates of those who have met a job, all in the same way. One without a nonce is that of a message which came
-- again: it is no duplicate of the job, and takes the place of the one before it.
-- KEYS: job, duplicates, statistics, wake
-- ARGV: the fields of the duplicate, submissions (JSON array of their nonces), duplicate_limit
-- refusal: nothing happens when the job is gone; a submission whose duplicate is there is left out
local key, duplicates, duplicate_stats, wake = unpack(KEYS)

local job, new, seen = read(key, wake), {}, {}
if not job then
  return {}
end
for _, duplicate in ipairs(redis.call('LRANGE', duplicates, 0, -1)) do
  seen[cjson.decode(duplicate)[1]] = true
end
for _, nonce in ipairs(cjson.decode(arg.submissions)) do
  if nonce == '' or not seen[nonce] then
    new[#new + 1] = nonce
  end
end
if #new == 0 then
  return {}
end
if arg.submission_nonce ~= '' then
  count(key, job, #new)
end
leave_duplicates(duplicates, duplicate_stats, job, clock(), new, arg.outcome, arg.answered_by, arg.arguments_differ, arg.rescheduled)
return {}
