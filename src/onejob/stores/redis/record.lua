#!lua
-- Keep the receipts of those who have met a job, all in the same way. One without a nonce is that of a message which came
-- again: it is no duplicate of the job, and takes the place of the one before it.
-- KEYS: job, receipts, tallies, wake
-- ARGV: the fields of the receipt, submissions (JSON array of their nonces), receipt_limit
-- refusal: nothing happens when the job is gone; a submission whose receipt is there is left out
local key, receipts, tallies, wake = unpack(KEYS)

local job, new, seen = read(key, wake), {}, {}
if not job then
  return {}
end
for _, receipt in ipairs(redis.call('LRANGE', receipts, 0, -1)) do
  seen[cjson.decode(receipt)[1]] = true
end
for _, nonce in ipairs(cjson.decode(arg.submissions)) do
  if nonce == '' or not seen[nonce] then
    new[#new + 1] = nonce
  end
end
if #new == 0 then
  return {}
end
if arg.submission ~= '' then
  count(key, job, #new)
end
leave_receipts(receipts, tallies, job, moment(), new, arg.outcome, arg.answer, arg.differs, arg.moved)
return {}
