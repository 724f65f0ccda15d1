#!lua
-- Let a submission meet a job: the one that answers its idempotency key, or else the one that holds its identity. What
-- comes of it is what `onejob.reaction.meet` says. When the submission must come to an end under its own id, its row is
-- written, too: it sleeps until its followed job ends.
-- KEYS: its job and history; identity, next, wake, jobs, following, statistics; the job that it meets, and that one's
--       history, duplicates and followers; the job queued next and its followers; its idempotency key, if it has one
-- ARGV: met and waiting (the ids of the two others), the fields of the submission, wake_in (seconds), window_over,
--       duplicate_limit, history_limit
-- returns: "met", the outcome, whether the job was moved, whether the key was reused, the id of the job that answers,
--          its row and, when the duplicate follows it, the duplicate's row. A submission that has met this job before
--          gets its first answer, with the row of the job that it has met
-- refusal: "own" and the row that has this id already; "moved" when another job is in the way by now or is queued next,
--          also when the one that was met is lost, or its uniqueness window is over: then it gives its identity up here
local own_key, own_history, identity, next_key, wake, jobs, following, duplicate_stats, met_key, met_history, duplicates,
  followers, queued_key, queued_followers, key = unpack(KEYS)
local now = clock()
local delay, expires_in, wake_in, key_for = number('delay'), number('expires_in'), number('wake_in'), number('key_for')
local max_wait, priority_rank = number('max_wait'), number('priority_rank')

-- What a submission comes to when it meets a job.
local function outcome_of(job)
  if arg.rejects == '1' then
    return 'rejected'
  elseif job.finished_at then
    return 'replayed'
  elseif job.attempt ~= '0' then
    return arg.queues_next == '1' and 'queued_next' or 'attached'
  end
  return arg.replaces == '1' and arg.fingerprint ~= job.fingerprint and 'replaced' or 'attached'
end

-- Let a job that waits for its first run become what comes of meeting it; tell whether it is due at another time now,
-- or more urgent.
local function touch(job_key, job, takes_over)
  if arg.rejects == '1' or job.finished_at or job.attempt ~= '0' then
    return false
  end
  local due, run_at = tonumber(job.run_at), math.max(tonumber(job.run_at), tonumber(job.created_at) + max_wait)
  run_at = math.min(now + delay, run_at)
  local more_urgent = priority_rank > tonumber(job.priority_rank)
  local rescheduled = run_at ~= due or more_urgent
  if not (rescheduled or takes_over) then
    return false
  end
  local expires_at, wake_at = tonumber(job.expires_at), tonumber(job.wake_at)
  local fields = { run_at = text(run_at), priority_rank = more_urgent and arg.priority_rank or nil }
  if takes_over then
    expires_at = expires_in and now + expires_in
    fields.payload, fields.fingerprint = arg.payload, arg.fingerprint
    fields.expires_at = expires_at and text(expires_at) or ''
  end
  if rescheduled and job.queued_next == '0' then
    wake_at = run_at > now and run_at or now + wake_in
  end
  write(job_key, job, fields)
  if wake_at or expires_at then
    alarm(wake, job.id, job, math.min(wake_at or expires_at, expires_at or wake_at))
  end
  return rescheduled
end

-- Write the submission as the job that runs after the one which it has met.
local function queue_next()
  local expires_at = expires_in and now + expires_in
  local job = enter(own_key, jobs, now, {
    holds_identity = '0', queued_next = '1', follows_id = arg.met, run_at = text(now + delay),
    expires_at = expires_at and text(expires_at), reason = 'runs after ' .. arg.met,
  })
  redis.call('SET', next_key, arg.id)
  redis.call('SADD', followers, arg.id)
  redis.call('HSET', following, arg.id, arg.met)
  if expires_at then
    alarm(wake, arg.id, job, expires_at)
  end
  note(own_history, job, now, 'queue_next', job.reason)
  return job
end

local own = read(own_key, wake)
if own then
  return { 'own', row(own) }
end

-- Who is in the way?
local met, first = read(met_key, wake), answered(key, now)
local reused = first.job_id and first.fingerprint ~= arg.fingerprint and '1' or '0'
if (first.job_id or redis.call('GET', identity)) ~= arg.met then
  return { 'changed' }
end
if first.job_id then
  -- A job that was deleted took its keys with it, also when another one has its id by now.
  if not met or (tonumber(met.key_retained_until) or 0) < tonumber(first['until']) then
    redis.call('DEL', key)
    return { 'changed' }
  end
else
  if not met or (met.holds_identity ~= '1' and met.queued_next ~= '1') then
    pass_on(identity, next_key, wake, now) -- the row was lost (evicted, deleted by hand): nothing else would do it
    return { 'changed' }
  elseif met.queued_next == '1' then
    promote(met_key, met_history, wake, following, met, now, met.follows_id)
  elseif met.identity_until and tonumber(met.identity_until) <= now then
    redis.call('DEL', identity)
    write(met_key, met, { holds_identity = '0' })
    note(met_history, met, now, 'release_identity', arg.window_over)
    return { 'changed' }
  end
end

-- Was this submission answered before?
if first.submission_nonce == arg.nonce then
  return { 'met', first.outcome, first.rescheduled, '0', arg.met, row(met) }
end
local before = duplicate_of(duplicates, arg.nonce)
if before then
  before = cjson.decode(before)
  return { 'met', before[3], before[10], reused, before[4], row(met) }
end

-- Who answers, and how?
local arguments_differ = arg.fingerprint ~= met.fingerprint and '1' or '0'
local answer, answer_key, answer_followers, outcome, rescheduled = met, met_key, followers, outcome_of(met), false
if first.job_id then
  outcome = reused == '1' and 'rejected' or met.finished_at and 'replayed' or 'attached'
else
  if outcome == 'queued_next' then
    local waiting = redis.call('GET', next_key)
    if waiting and waiting ~= arg.waiting then
      return { 'changed' }
    end
    answer, answer_key, answer_followers = waiting and read(queued_key, wake), queued_key, queued_followers
    if answer and answer.queued_next == '1' then
      outcome = outcome_of(answer)
    else
      answer, answer_key = queue_next(), own_key
    end
  end
  if answer.id ~= arg.id then
    rescheduled = touch(answer_key, answer, outcome == 'replaced')
  end
end

rescheduled = rescheduled and '1' or '0'
count(met_key, met, 1)
leave_duplicates(duplicates, duplicate_stats, met, now, { arg.nonce }, outcome, answer.id, arguments_differ, rescheduled)
local follower
if arg.follows == '1' and answer.id ~= arg.id and outcome ~= 'rejected' then
  follower = follow(own_key, jobs, wake, following, answer_followers, answer, now, 'follows ')
  note(own_history, follower, now, 'follow', follower.reason)
end
if outcome ~= 'rejected' and not first.job_id then
  keep_key(key, answer_key, answer, now, key_for, outcome, rescheduled)
end
return { 'met', outcome, rescheduled, reused, answer.id, row(answer), follower and row(follower) }
