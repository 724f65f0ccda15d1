#!lua
-- Resolve a duplicate that changes nothing in the job that answers: the common case of `attach`, with fewer keys.
-- KEYS: wake, leases, ended; the submission's job; identity; the existing job and its duplicates; duplicate_counts,
--       duplicate_sums
-- ARGV: clock, existing (the id of that job); of the submission id, nonce, fingerprint, delay, expires_in,
--       priority_rank, submitter, origin (what its duplicate records); submitter_limit
-- returns: as `attach`
-- refusal: "uncommon" for every other case: `attach` handles it
local own_key, identity, existing_key, duplicates, duplicate_counts, duplicate_sums = unpack(KEYS, 4)
local _, existing_id, id, nonce, fingerprint, delay, expires_in, priority_rank, submitter, origin, submitter_limit =
  unpack(ARGV)
delay, expires_in = number(delay) or 0, number(expires_in)
priority_rank, submitter_limit = number(priority_rank) or 0, number(submitter_limit)
local now = clock()

-- Whether a job that waits for its first run takes over the time, the priority or the expiry of the submission.
local function is_changed(row)
  local previous, expires_at = run_at_of(row), tonumber(row[EXPIRES_AT])
  return expires_at and not (expires_in and now + expires_in <= expires_at)
    or math.min(now + delay, math.max(previous, tonumber(row[CREATED_AT]))) ~= previous
    or priority_rank > tonumber(row[PRIORITY_RANK] or 0)
end

local existing = read_job(existing_key, existing_id)
local row = existing and existing[1]
if not row
  or not row[HOLDS_IDENTITY]
  or is_over(row, now)
  or not (row[ATTEMPT] or row[FINISHED_AT]) and is_changed(row)
  or redis.call('GET', identity) ~= existing_id
  or redis.call('EXISTS', own_key) == 1
  or find_duplicate(duplicates, nonce)
then
  return { 'uncommon' }
end

local outcome = row[FINISHED_AT] and 'replayed' or 'attached'
local arguments_differ = fingerprint ~= fingerprint_of(row) and '1' or '0'
bump_duplicate_count(row, 1)
write_row(existing_key, row)
append_duplicate(duplicates, nonce, format_duplicate(now, outcome, arguments_differ, '0', existing_id), origin)
count_duplicates(duplicate_counts, duplicate_sums, existing_id, row[TASK], submitter, outcome, 1, submitter_limit)
return { 'duplicate', outcome, '0', '0', existing_id, existing_id, reply(existing), false }
