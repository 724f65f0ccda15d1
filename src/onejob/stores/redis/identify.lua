#!lua
-- Have the idempotency key of a submission whose id exists name the job that answers it, unless the key names a job.
-- KEYS: wake, leases, ended; the job that answers, the idempotency key, the successor of the stale job
-- ARGV: clock, the id of the job that answers, the id of a deleted job that the key may still name ("" for none), key_for
--       (seconds; '' if the key is not kept), fingerprint, outcome
-- returns: "named" and the job; without key_for "free"
-- refusal: "keyed", the id of the job that the key names, with which fingerprint, and until when; "lost" without the job
local job_key, key, successor = unpack(KEYS, 4)
local id, stale, key_for, fingerprint, outcome = unpack(ARGV, 2)
local now = clock()
key_for = number(key_for)

local keyed = read_key(key, now)
if keyed.job_id and keyed.job_id == stale then
  keyed.job_id = pass_on_key(key, successor)
end
if keyed.job_id then
  return { 'keyed', keyed.job_id, keyed.fingerprint, keyed['until'] }
elseif not key_for then
  return { 'free' }
end
local job = read_job(job_key, id)
if not job then
  return { 'lost' }
end
local row, expires_at = fill_row(job[1]), now + key_for
keep_key(key, id, { [FINGERPRINT] = fingerprint, [SUBMISSION_NONCE] = '' }, now, expires_at, outcome, '0')
row[KEY_RETAINED_UNTIL] = format_time(math.max(tonumber(row[KEY_RETAINED_UNTIL]) or expires_at, expires_at))
write_row(job_key, row)
return { 'named', reply(job) }
