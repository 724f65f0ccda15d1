#!lua
-- Start a run: a new token, a new lease, and the job no longer expires.
-- KEYS: job, history, wake, leases
-- ARGV: job_id, nonce, node, sources (words), target, history_limit
-- returns: "done" and the job, also when this claim was granted before and still stands
-- refusal: "refused" and the job when it is not in the sources, not due, expired, asked to cancel or waiting for its
--          identity; "gone"
local key, history, wake, leases = unpack(KEYS)

local job = read(key, wake)
if not job then
  return { 'gone' }
end
if known(job, arg.nonce) then
  local stands = job.claim == arg.nonce and job.state == arg.target
  return { stands and 'applied' or 'refused', row(job) }
end

local now, micros = clock()
local expires_at = tonumber(job.expires_at)
if not has(arg.sources, job.state)
  or tonumber(job.run_at) > now
  or (expires_at and expires_at <= now)
  or job.cancel ~= '0'
  or job.queued_next == '1'
then
  return { 'refused', row(job) }
end

local attempt = whole(tonumber(job.attempt) + 1)
local lease_until = now + tonumber(job.lease)
write(key, job, {
  state = arg.target,
  token = whole(math.max(tonumber(job.token) + 1, micros)),
  claim = arg.nonce,
  node = arg.node,
  attempt = attempt,
  lease_until = text(lease_until),
  started_at = text(now),
  expires_at = '',
  published = '0',
  reason = 'running on ' .. arg.node,
  requests = remember(job, arg.nonce),
})
alarm(wake, arg.job_id, job, lease_until)
redis.call('ZADD', leases, job.wake_at, arg.job_id)
note(history, job, now, 'claim', 'attempt ' .. attempt .. ' on ' .. arg.node)
return { 'applied', row(job) }
