#!lua
-- Start a run: set a new token and lease, and clear the job's expiry.
-- KEYS: wake, leases, ended; job, history
-- ARGV: job_id, nonce, node, sources (words), target, history_limit
-- returns: "applied" and the job, also for a repeated claim whose run is still the job's
-- refusal: "refused" and the job when it is not in the sources, not due, expired or queued next, or when its
--          cancellation was requested; "gone"
local wake = wake_sets()
local key, history = unpack(KEYS, 4)

local job = read_job(key, wake)
if not job then
  return { 'gone' }
end
if is_repeated(job, arg.nonce) then
  local is_current = job.claim == arg.nonce and job.state == arg.target
  return { is_current and 'applied' or 'refused', flatten(job) }
end

local now, micros = clock()
local expires_at = tonumber(job.expires_at)
if not contains(arg.sources, job.state)
  or tonumber(job.run_at) > now
  or (expires_at and expires_at <= now)
  or job.cancel ~= '0'
  or job.queued_next == '1'
then
  return { 'refused', flatten(job) }
end

local previous_set = wake_set(wake, job)
local attempt = format_integer(tonumber(job.attempt) + 1)
local lease_until = now + tonumber(job.lease)
write_job(key, job, {
  state = arg.target,
  token = format_integer(math.max(tonumber(job.token) + 1, micros)),
  claim = arg.nonce,
  node = arg.node,
  attempt = attempt,
  lease_until = format_time(lease_until),
  started_at = format_time(now),
  expires_at = '',
  published = '0',
  publish_error = job.publish_error and '',
  reason = 'running on ' .. arg.node,
  requests = add_request(job, arg.nonce),
})
set_wake_at(wake, job, lease_until, previous_set)
append_history(history, job, now, 'claim', 'attempt ' .. attempt .. ' on ' .. arg.node)
return { 'applied', flatten(job) }
