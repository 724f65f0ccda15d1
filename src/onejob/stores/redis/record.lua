#!lua
-- Store duplicates that differ only by their nonces. A duplicate without a nonce is that of a redelivered message: it
-- is not counted in the job's row, and replaces the one before it.
-- KEYS: job, duplicates, duplicate_stats
-- ARGV: the fields of the duplicate, submissions (JSON array of the nonces), duplicate_limit
-- refusal: nothing changes when the job does not exist; a duplicate that is stored already is skipped
local key, duplicates, duplicate_stats = unpack(KEYS)

local job, new, stored = read_hash(key), {}, {}
if not job.id then
  return {}
end
for _, duplicate in ipairs(redis.call('LRANGE', duplicates, 0, -1)) do
  stored[cjson.decode(duplicate)[1]] = true
end
for _, nonce in ipairs(cjson.decode(arg.submissions)) do
  if nonce == '' or not stored[nonce] then
    new[#new + 1] = nonce
  end
end
if #new == 0 then
  return {}
end
if arg.submission_nonce ~= '' then
  bump_duplicate_count(key, job, #new)
end
store_duplicates(
  duplicates, duplicate_stats, job, clock(), new, arg.outcome, arg.answered_by, arg.arguments_differ, arg.rescheduled
)
return {}
