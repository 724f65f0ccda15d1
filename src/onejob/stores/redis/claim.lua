#!lua
-- Start a run: set a new token and lease, and clear the job's expiry and its pause. The history gets the entry of the
-- previous claim. A job with limits needs room on all its keys, and is parked on the first one that has none; the sets of
-- its keys are no declared keys: they are in the slot of all keys of the ledger.
-- KEYS: wake, leases, ended; job, history; the sets of `indexed`
-- ARGV: clock, job_id, nonce, node, sources (words), target, indexed (see `move_between_states`)
-- returns: "applied" and the job, also for a repeated claim whose run is still the job's
-- refusal: "refused" and the job when it is not in the sources, not due, expired or queued next, or when its
--          cancellation was requested; "gone"
local key, history = unpack(KEYS, 4)
local _, job_id, nonce, node, sources, target, indexed = unpack(ARGV)

local job = read_job(key, job_id)
if not job then
  return { 'gone' }
end
local row = job[1]
if is_repeated(row[REQUESTS], nonce) then
  local is_current = row[CLAIM] == nonce and row[STATE] == target
  return { is_current and 'applied' or 'refused', reply(job) }
end

local now, started_at = clock()
local expires_at = tonumber(row[EXPIRES_AT])
if not contains(sources, row[STATE])
  or run_at_of(row) > now
  or (expires_at and expires_at <= now)
  or row[CANCEL]
  or row[QUEUED_NEXT]
then
  return { 'refused', reply(job) }
end

local is_limited = row[LIMIT_KEYS] and not row[FOLLOWS_ID] -- a follower has no run of its own
local full = is_limited and find_full(job, now)
if full then
  park_on_key(job, history, full, now)
  return { 'refused', reply(job) }
end

local previous_set, previous_state, attempt = wake_set(row), row[STATE], row[ATTEMPT]
fill_row(row)
row[STATE] = target
leave_parked_set(job)
if attempt then
  append_history(history, row, row[STARTED_AT], 'claim', 'attempt ' .. attempt .. ' on ' .. row[NODE])
end
local lease_until = now + tonumber(row[LEASE])
row[TOKEN] = format_integer(math.max(tonumber(row[TOKEN] or 0) + 1, math.floor(now * 1000000 + 0.5)))
row[CLAIM], row[NODE], row[REASON] = nonce, node, 'running on ' .. node
row[ATTEMPT] = format_integer(tonumber(attempt or 0) + 1)
row[LEASE_UNTIL], row[STARTED_AT] = format_time(lease_until), started_at
row[EXPIRES_AT], row[PUBLISHED], row[PUBLISHED_AT], row[PUBLISH_ERROR] = false, false, '0', false
row[REQUESTS] = add_request(row[REQUESTS], nonce)
if is_limited then
  take_room(job, lease_until, now)
end
write_row(key, row)
set_wake_at(job, lease_until, previous_set)
move_between_states(indexed, job, previous_state)
return { 'applied', reply(job) }
