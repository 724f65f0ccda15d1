#!lua
-- Keep the receipt of somebody who has met a job. One without a nonce is that of a message which came again: it is no
-- duplicate of the job, and takes the place of the one before it.
-- KEYS: job, receipts, tallies, wake
-- ARGV: the fields of the receipt, receipt_limit
-- refusal: nothing happens when the job is gone, or has the receipt of this submission
local key, receipts, tallies, wake = unpack(KEYS)

local job = read(key, wake)
if not job or (arg.submission ~= '' and receipt_of(receipts, arg.submission)) then
  return {}
end
if arg.submission ~= '' then
  count(key, job)
end
leave_receipt(receipts, tallies, job, moment(), arg.submission, arg.outcome, arg.answer, arg.differs, arg.moved)
return {}
