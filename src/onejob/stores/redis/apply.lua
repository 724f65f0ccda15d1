#!lua flags=allow-oom
-- Compare and set: one change of one job. A field of the change that was not sent leaves the job's field unchanged.
-- The end of a job makes its followers due, and gives its identity to the job that is queued next.
-- A reopened job takes its identity.
-- KEYS: wake, leases, ended; job, identity, next, history, followers, follows_ids, steps
-- ARGV: the fields of the change (sources as words), history_limit
-- returns: "applied" and the job, also for a repeated request; after an end also the id of the job that has the
--          identity now, whose row `promote` updates if it was queued next
-- refusal: "refused" and the job when a condition does not hold, and the id of the job that holds the identity if that
--          is the reason; "gone"
local wake = wake_sets()
local key, identity, next_key, history, followers, follows_ids, steps = unpack(KEYS, 4)

local job = read_job(key, wake)
if not job then
  return { 'gone' }
end
local holder = redis.call('GET', identity)
local ends, reopens, queued_next = arg.ends == '1', arg.reopens == '1', job.queued_next == '1'
if is_repeated(job, arg.request_id) then
  return { 'applied', flatten(job), ends and holder or nil }
end
assert(job.identity == arg.identity, 'the change names another identity than the job')

local now = clock()
local lease_until, expires_at = tonumber(job.lease_until), tonumber(job.expires_at)
if not contains(arg.sources, job.state)
  or (arg.token and arg.token ~= job.token)
  or (arg.lapsed == '1' and not (lease_until and lease_until <= now))
  or (arg.overdue == '1' and not (expires_at and expires_at <= now))
  or (arg.unnotified == '1' and job.canvas_pending ~= '1')
then
  return { 'refused', flatten(job) }
elseif reopens and holder and not (holder == arg.job_id and queued_next) then
  return { 'refused', flatten(job), holder }
end

local previous_set = wake_set(wake, job)
local run_in, wake_in = number('run_in'), number('wake_in')
local identity_for, identity_until = number('identity_for'), number('identity_until')
local fields = { requests = add_request(job, arg.request_id) }
if reopens then
  fields.holds_identity, fields.follows_id, fields.finished_at, fields.result, fields.error = '1', '', '', '', ''
  redis.call('SET', identity, arg.job_id)
end
if arg.forgets_steps == '1' then
  redis.call('DEL', steps)
end
for _, name in ipairs({
  'payload', 'options', 'route', 'retries', 'crashes', 'published', 'publish_error', 'cancel', 'canvas_pending', 'result',
  'error', 'reason',
}) do
  fields[name] = arg[name] or fields[name]
end
if arg.target then
  fields.state, fields.lease_until = arg.target, ''
end
if identity_until or identity_for then
  fields.identity_until = format_time(identity_until or now + identity_for)
end
if run_in then
  fields.run_at = format_time(now + run_in)
end
if ends then
  fields.finished_at = format_time(now)
end
if queued_next and (ends or reopens) then
  fields.queued_next, fields.follows_id = '0', ''
  if redis.call('GET', next_key) == arg.job_id then
    redis.call('DEL', next_key)
  end
end
local releases = not reopens and (arg.keeps_identity == '0' or (queued_next and ends))
if releases and job.holds_identity == '1' then
  fields.holds_identity = '0'
end
write_job(key, job, fields)
local wake_at = wake_in and now + wake_in or tonumber(job.wake_at) or now
if wake_in and not job.finished_at then
  wake_at = math.min(wake_at, expires_at or wake_at)
end
set_wake_at(wake, job, wake_at, previous_set)
append_history(history, job, now, arg.event, arg.detail)
releases = releases and holder == arg.job_id
local is_free, holder_id = releases or not (holder or reopens), nil
if ends or reopens then
  redis.call('HDEL', follows_ids, arg.job_id)
end
if ends then
  for follower, task in pairs(read_hash(followers)) do
    if redis.call('HGET', follows_ids, follower) == arg.job_id then
      wake_follower(wake, follower, task, now)
    end
  end
  holder_id = is_free and hand_over_identity(identity, next_key, wake, followers, now) or nil
elseif releases then
  redis.call('DEL', identity)
end
return { 'applied', flatten(job), holder_id }
