#!lua
-- Write a queued job that holds its identity.
-- KEYS: job, identity, history, wake, jobs
-- ARGV: the fields of the submission (delay, expires_in in seconds), wake_in (seconds), history_limit
-- returns: "admitted" and the job
-- refusal: "own" and the row that has this id already; "taken" and the id of the job that holds the identity
local key, identity, history, wake, jobs = unpack(KEYS)

local own = read(key, wake)
if own then
  return { 'own', row(own) }
end
local holder = redis.call('GET', identity)
if holder then
  return { 'taken', holder }
end

local now = moment()
local run_at, wake_at = now + number('delay'), now + number('wake_in')
local job, fields = {}, fresh(now)
fields.holds, fields.run_at, fields.reason = '1', text(run_at), 'submitted'
if arg.expires_in then
  local expires_at = now + number('expires_in')
  fields.expires_at = text(expires_at)
  wake_at = math.min(wake_at, expires_at)
end

redis.call('SET', identity, arg.id)
write(key, job, fields)
alarm(wake, arg.id, job, wake_at)
redis.call('ZADD', jobs, job.created_at, arg.id)
note(history, job, now, 'submit', arg.door)
return { 'admitted', row(job) }
