-- name: pop_messages
#!lua
-- Pop the messages of jobs from lists of a broker, up to the first message in each list that is none of a job.
-- KEYS: lists, the most urgent first
-- ARGV: clock, text (which messages of jobs contain), limit
-- returns: the messages
local found = {}
for _, list in ipairs(KEYS) do
  while #found < tonumber(ARGV[3]) do
    local message = redis.call('LINDEX', list, -1)
    if not message or not string.find(message, ARGV[2], 1, true) then
      break
    end
    redis.call('RPOP', list)
    found[#found + 1] = message
  end
end
return found
