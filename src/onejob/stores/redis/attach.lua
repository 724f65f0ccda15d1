#!lua
-- Resolve a duplicate: a submission whose idempotency key or identity belongs to an existing job. The rules are those
-- of `onejob.uniqueness.on_duplicate.resolve`. With `follows` the submission gets a row of its own, as a follower.
-- KEYS: wake, leases, ended; the submission's job and history; identity, next, jobs, follows_ids, duplicate_counts,
--       duplicate_sums; the
--       existing job with its history, duplicates and followers; the job queued next and its followers; the idempotency
--       key, if any
-- ARGV: existing and queued (the ids of the two other jobs), the fields of the submission, wake_in (seconds),
--       window_over, duplicate_limit, history_limit, submitter_limit, other_submitters
-- returns: "duplicate", the outcome, rescheduled, key_reused, the id of the job that answers, its row and, for a
--          follower, the follower's row. A repeated submission gets its first answer, with the row of the existing job
-- refusal: "own" and the row that has this id already; "changed" when another job holds the identity or is queued next
--          by now, when the row of the existing job is lost, and when its uniqueness window is over: both of the latter
--          release the identity
local wake = wake_sets()
local own_key, own_history, identity, next_key, jobs, follows_ids, duplicate_counts, duplicate_sums, existing_key,
  existing_history, duplicates, followers, queued_key, queued_followers, key = unpack(KEYS, 4)
local now = clock()
local delay, expires_in, wake_in, key_for = number('delay'), number('expires_in'), number('wake_in'), number('key_for')
local max_wait, priority_rank = number('max_wait'), number('priority_rank')

-- The outcome of the submission as a duplicate of a job.
local function decide_outcome(job)
  if arg.rejects == '1' then
    return 'rejected'
  elseif job.finished_at then
    return 'replayed'
  elseif job.attempt ~= '0' then
    return arg.queues_next == '1' and 'queued_next' or 'attached'
  end
  return arg.replaces == '1' and arg.fingerprint ~= job.fingerprint and 'replaced' or 'attached'
end

-- Apply the submission to a job that waits for its first run. Returns whether `run_at` or `priority_rank` changed.
local function update_waiting_job(job_key, job, takes_over)
  if arg.rejects == '1' or job.finished_at or job.attempt ~= '0' then
    return false
  end
  local previous = tonumber(job.run_at)
  local run_at = math.min(now + delay, math.max(previous, tonumber(job.created_at) + max_wait))
  local more_urgent = priority_rank > tonumber(job.priority_rank)
  local rescheduled = run_at ~= previous or more_urgent
  if not (rescheduled or takes_over) then
    return false
  end
  local expires_at, wake_at = tonumber(job.expires_at), tonumber(job.wake_at)
  local fields = { run_at = format_time(run_at), priority_rank = more_urgent and arg.priority_rank or nil }
  if takes_over then
    expires_at = expires_in and now + expires_in
    fields.payload, fields.route, fields.fingerprint = arg.payload, arg.route, arg.fingerprint
    fields.expires_at = expires_at and format_time(expires_at) or ''
  end
  if rescheduled and job.queued_next == '0' then
    wake_at = run_at > now and run_at or now + wake_in
  end
  write_job(job_key, job, fields)
  set_wake_at(wake, job, math.min(wake_at or now, expires_at or math.huge))
  return rescheduled
end

-- Write the submission as the job that runs after the existing one.
local function queue_next()
  local expires_at = expires_in and now + expires_in
  local job = insert_job(own_key, jobs, now, {
    holds_identity = '0', queued_next = '1', follows_id = arg.existing, run_at = format_time(now + delay),
    expires_at = expires_at and format_time(expires_at), reason = 'runs after ' .. arg.existing,
  })
  redis.call('SET', next_key, arg.id)
  add_follower(wake, follows_ids, followers, job, math.min(now + number('lease'), expires_at or math.huge))
  append_history(own_history, job, now, 'queue_next', job.reason)
  return job
end

local own = read_job(own_key, wake)
if own then
  return { 'own', flatten(own) }
end

-- Which job answers: that of the key, or the holder of the identity?
local existing, keyed = read_job(existing_key, wake), read_key(key, now)
local key_reused = keyed.job_id and keyed.fingerprint ~= arg.fingerprint and '1' or '0'
if (keyed.job_id or redis.call('GET', identity)) ~= arg.existing then
  return { 'changed' }
end
if keyed.job_id then
  -- The key outlived its job: the job was deleted, and another one may have its id.
  if not existing or (tonumber(existing.key_retained_until) or 0) < tonumber(keyed['until']) then
    redis.call('DEL', key)
    return { 'changed' }
  end
else
  if not existing or (existing.holds_identity ~= '1' and existing.queued_next ~= '1') then
    -- The row was lost (evicted, deleted by hand): nothing else would release the identity.
    hand_over_identity(identity, next_key, wake, followers, now)
    return { 'changed' }
  elseif existing.queued_next == '1' then
    promote(existing_key, existing_history, wake, follows_ids, existing, now, existing.follows_id)
  elseif release_expired(identity, existing_key, existing_history, existing, now) then
    return { 'changed' }
  end
end

-- Is this submission repeated?
if keyed.submission_nonce == arg.nonce then
  return { 'duplicate', keyed.outcome, keyed.rescheduled, '0', arg.existing, flatten(existing) }
end
local stored = find_duplicate(duplicates, arg.nonce)
if stored then
  stored = cjson.decode(stored)
  return { 'duplicate', stored[3], stored[10], key_reused, stored[4], flatten(existing) }
end

-- Decide the outcome, and update the job that answers.
local arguments_differ = arg.fingerprint ~= existing.fingerprint and '1' or '0'
local answer, answer_key, answer_followers = existing, existing_key, followers
local outcome, rescheduled = decide_outcome(existing), false
if keyed.job_id then
  outcome = key_reused == '1' and 'rejected' or existing.finished_at and 'replayed' or 'attached'
else
  if outcome == 'queued_next' then
    local queued_id = redis.call('GET', next_key)
    if queued_id and queued_id ~= arg.queued then
      return { 'changed' }
    end
    answer, answer_key, answer_followers = queued_id and read_job(queued_key, wake), queued_key, queued_followers
    if answer and answer.queued_next == '1' then
      outcome = decide_outcome(answer)
    else
      answer, answer_key = queue_next(), own_key
    end
  end
  if answer.id ~= arg.id then
    rescheduled = update_waiting_job(answer_key, answer, outcome == 'replaced')
  end
end

rescheduled = rescheduled and '1' or '0'
bump_duplicate_count(existing_key, existing, 1)
store_duplicates(duplicates, now, { arg.nonce }, outcome, answer.id, arguments_differ, rescheduled)
count_duplicates(duplicate_counts, duplicate_sums, existing, outcome, 1)
local follower
if arg.follows == '1' and answer.id ~= arg.id and outcome ~= 'rejected' then
  follower = insert_follower(own_key, jobs, wake, follows_ids, answer_followers, answer, now, 'follows ')
  append_history(own_history, follower, now, 'follow', follower.reason)
end
if outcome ~= 'rejected' and not keyed.job_id then
  keep_key(key, answer_key, answer, now, key_for, outcome, rescheduled)
end
return { 'duplicate', outcome, rescheduled, key_reused, answer.id, flatten(answer), follower and flatten(follower) }
