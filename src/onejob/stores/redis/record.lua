#!lua
-- Store duplicates that differ only by their nonces. A duplicate without a nonce is that of a redelivered message: it
-- is not counted in the job's row, and replaces the one before it.
-- KEYS: job, duplicates, duplicate_counts, duplicate_sums
-- ARGV: the fields of the duplicate, counted_as (the outcome in the statistics), submissions (JSON array of the nonces),
--       duplicate_limit, submitter_limit, other_submitters
-- refusal: nothing changes when the job does not exist; a duplicate that is stored already is skipped
local key, duplicates, duplicate_counts, duplicate_sums = unpack(KEYS)

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
store_duplicates(duplicates, clock(), new, arg.outcome, arg.answered_by, arg.arguments_differ, arg.rescheduled)
count_duplicates(duplicate_counts, duplicate_sums, job, arg.counted_as, #new)
return {}
