#!lua flags=allow-oom
-- Compare and set: one change of one job. A field of the change that was not sent leaves the job's field as it is.
-- A job that ends rings the alarms of the jobs that follow it. A job that is reopened takes its identity again.
-- KEYS: job, identity, history, wake, followers, following, steps
-- ARGV: the fields of the change (sources as words), history_limit
-- returns: "done" and the job, also when this request was applied before
-- refusal: "refused" and the job when a condition does not hold; "gone"
local key, identity, history, wake, followers, following, steps = unpack(KEYS)

local job = read(key, wake)
if not job then
  return { 'gone' }
end
if known(job, arg.request_id) then
  return { 'done', row(job) }
end
assert(job.identity == arg.identity, 'the change names another identity than the job')

local now = moment()
local lease_until, expires_at = tonumber(job.lease_until), tonumber(job.expires_at)
if not has(arg.sources, job.state)
  or (arg.token and arg.token ~= job.token)
  or (arg.lapsed == '1' and not (lease_until and lease_until <= now))
  or (arg.overdue == '1' and not (expires_at and expires_at <= now))
  or (arg.reopens == '1' and redis.call('EXISTS', identity) == 1)
then
  return { 'refused', row(job) }
end

local ends, reopens, run_in, wake_in = arg.ends == '1', arg.reopens == '1', number('run_in'), number('wake_in')
local identity_for, identity_until = number('identity_for'), number('identity_until')
local fields = { requests = remember(job, arg.request_id) }
if reopens then
  fields.holds, fields.leader, fields.finished_at, fields.result, fields.error = '1', '', '', '', ''
  redis.call('SET', identity, arg.job_id)
end
if arg.forgets_steps == '1' then
  redis.call('DEL', steps)
end
for _, name in ipairs({
  'payload', 'retries', 'crashes', 'published', 'cancel', 'undelivered', 'result', 'error', 'reason',
}) do
  fields[name] = arg[name] or fields[name]
end
if arg.target then
  fields.state, fields.lease_until = arg.target, ''
end
if identity_until or identity_for then
  fields.identity_until = text(identity_until or now + identity_for)
end
if run_in then
  fields.run_at = text(now + run_in)
end
if ends then
  fields.finished_at = text(now)
end
if arg.keeps_identity == '0' and job.holds == '1' then
  fields.holds = '0'
  if redis.call('GET', identity) == arg.job_id then
    redis.call('DEL', identity)
  end
end
write(key, job, fields)
if wake_in then
  local wake_at = now + wake_in
  alarm(wake, arg.job_id, job, job.finished_at and wake_at or math.min(wake_at, expires_at or wake_at))
end
note(history, job, now, arg.event, arg.detail)
if ends then
  redis.call('HDEL', following, arg.job_id)
  for _, follower in ipairs(redis.call('SMEMBERS', followers)) do
    if redis.call('HGET', following, follower) == arg.job_id then
      redis.call('ZADD', wake, text(now), follower)
    end
  end
end
return { 'done', row(job) }
