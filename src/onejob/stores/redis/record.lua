#!lua
-- Store duplicates that differ only by their nonces. A duplicate without a nonce is a redelivered message: it is not
-- counted in the job's row, and replaces the previous redelivered message.
-- KEYS: job, duplicates, duplicate_counts, duplicate_sums
-- ARGV: clock, job_id, outcome, answered_by, arguments_differ, rescheduled, origin (where it came from, as JSON),
--       submitter, counted_as (the outcome in the statistics), submitter_limit; the nonces
-- refusal: nothing changes when the job does not exist; a duplicate that is stored already is skipped
local FIRST_NONCE = 11
local key, duplicates, duplicate_counts, duplicate_sums = unpack(KEYS)
local job_id, outcome, answered_by, arguments_differ, rescheduled, origin, submitter, counted_as = unpack(ARGV, 2, 9)
local submitter_limit, now = number(ARGV[10]), clock()

local job = read_job(key, job_id, 0)
if not job then
  return {}
end
local row, stored, added = job[1], {}, 0
local duplicate = format_duplicate(now, outcome, arguments_differ, rescheduled, answered_by)
local elements = redis.call('LRANGE', duplicates, -3 * DUPLICATE_LIMIT, -1)
for i = 1, #elements, 3 do
  stored[elements[i]] = true
end
for i = FIRST_NONCE, #ARGV do
  local nonce = ARGV[i]
  if nonce == '' then
    write_part(job, REDELIVERY, cjson.encode({ duplicate, origin }))
  elseif not stored[nonce] then
    append_duplicate(duplicates, nonce, duplicate, origin)
  end
  added = added + (stored[nonce] and 0 or 1)
end
if added == 0 then
  return {}
end
if ARGV[FIRST_NONCE] ~= '' then
  bump_duplicate_count(row, added)
  write_row(key, row)
end
count_duplicates(duplicate_counts, duplicate_sums, job_id, row[TASK], submitter, counted_as, added, submitter_limit)
return {}
