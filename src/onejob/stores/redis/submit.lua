#!lua
-- Write a queued job that holds its identity.
-- KEYS: wake, leases, ended; job, history, identity, next, jobs; the idempotency key, if there is one
-- ARGV: the fields of the submission (delay, expires_in, key_for in seconds), wake_in (seconds), history_limit
-- returns: "admitted" and the job
-- refusal: "own" and the row that has this id already; "keyed" and the id of the job that answers the idempotency key;
--          "held", the id of the job that holds the identity, and the id of the job that is queued next, or ""
local wake = wake_sets()
local job_key, history, identity, next_key, jobs, key = unpack(KEYS, 4)

local own = read_job(job_key, wake)
if own then
  return { 'own', flatten(own) }
end
local now = clock()
local delay, wake_in, expires_in, key_for = number('delay'), number('wake_in'), number('expires_in'), number('key_for')
local keyed, holder = read_key(key, now), redis.call('GET', identity)
if keyed.job_id then
  return { 'keyed', keyed.job_id }
elseif holder then
  return { 'held', holder, redis.call('GET', next_key) or '' }
end

local expires_at = expires_in and now + expires_in
local job = insert_job(job_key, jobs, now, {
  holds_identity = '1', run_at = format_time(now + delay), reason = 'submitted',
  expires_at = expires_at and format_time(expires_at),
})
redis.call('SET', identity, arg.id)
set_wake_at(wake, job, math.min(now + (delay > 0 and delay or wake_in), expires_at or math.huge))
keep_key(key, job_key, job, now, key_for, 'admitted', '0')
append_history(history, job, now, 'submit', arg.source)
return { 'admitted', flatten(job) }
