#!lua
-- Resolve a duplicate: a submission whose idempotency key or identity belongs to an existing job. The rules are the same
-- as in `onejob.jobs.on_duplicate.resolve`. With `follows` the submission gets a row of its own, as a follower.
-- KEYS: wake, leases, ended; the submission's job and history; identity, next, jobs, the set of the submitter, follows_ids,
--       duplicate_counts, duplicate_sums; the existing job with its history, duplicates and followers; the job queued next and its
--       followers; the idempotency key, if any, and the successor of the existing job; the quotas; with `has_holder` the job that holds the identity, and its
--       duplicates
-- ARGV: clock, existing and queued (the ids of the two other jobs), wake_after (seconds), is_sent, submitter_limit; of the submission
--       id, row (`GIVEN`, packed), payload, options, delay, expires_in, key_for ('' without a key), max_wait, rejects,
--       replaces, queue_next, follows, origin (what its duplicate records), limits (of its quotas, see `charge`), has_holder
-- returns: "duplicate", the outcome, rescheduled, key_reused, the id of the job that answers, the id of the job whose
--          row follows, its row and, for a follower, the follower's row. A repeated submission gets its first answer,
--          with the row of the existing job
-- refusal: "own" when a job has this id already; "changed" when another job holds the identity or is queued next
--          by now, when the row of the existing job is lost, and when that job no longer holds it (see `is_over`): the
--          last two release the identity. "exceeded", see `charge`, when the submission would be queued next
local own_key, own_history, identity, next_key, jobs, of_submitter, follows_ids, duplicate_counts, duplicate_sums, existing_key,
  existing_history, duplicates, followers, queued_key, queued_followers, key, successor = unpack(KEYS, 4)
local existing_id, queued_id, wake_after, is_sent, submitter_limit, id, given, payload, options, delay, expires_in, key_for, max_wait,
  rejects, replaces, queue_next, follows, origin, limits, has_holder = unpack(ARGV, 2)
local now, created_at = clock()
wake_after, submitter_limit, max_wait = number(wake_after), number(submitter_limit), number(max_wait)
delay, expires_in, key_for = number(delay) or 0, number(expires_in), number(key_for)
key = key_for and key

if redis.call('EXISTS', own_key) == 1 then
  return { 'own' }
end
local submitted = new_row(given, created_at)
local fingerprint, nonce = fingerprint_of(submitted), submitted[SUBMISSION_NONCE]

-- The outcome of the submission as a duplicate of a job.
local function decide_outcome(row)
  if rejects == '1' then
    return 'rejected'
  elseif row[FINISHED_AT] then
    return 'replayed'
  elseif row[ATTEMPT] then
    return queue_next == '1' and 'queued_next' or 'attached'
  end
  return replaces == '1' and fingerprint ~= fingerprint_of(row) and 'replaced' or 'attached'
end

-- Apply the submission to a job that waits for its first run; its row is written by the caller. Returns whether
-- `run_at` or `priority_rank` changed.
local function update_waiting_job(job, takes_over)
  local row = job[1]
  if rejects == '1' or row[FINISHED_AT] or row[ATTEMPT] then
    return false
  end
  local previous, priority_rank = run_at_of(row), submitted[PRIORITY_RANK]
  local run_at = math.min(now + delay, math.max(previous, tonumber(row[CREATED_AT]) + max_wait))
  local more_urgent = tonumber(priority_rank or 0) > tonumber(row[PRIORITY_RANK] or 0)
  local rescheduled = run_at ~= previous or more_urgent
  local expires_at, new_expires_at = tonumber(row[EXPIRES_AT]), expires_in and now + expires_in
  local lives_longer = expires_at and not (new_expires_at and new_expires_at <= expires_at)
  if not (rescheduled or takes_over or lives_longer) then
    return false
  end
  local wake_at = tonumber(read_wake_at(job) or now)
  if run_at ~= previous then
    row[RUN_AT] = format_time(run_at)
  end
  if more_urgent then
    row[PRIORITY_RANK] = priority_rank
    enter_parked_set(job)
  end
  if takes_over then
    row[ROUTE], row[FINGERPRINT] = submitted[ROUTE], fingerprint ~= row[IDENTITY] and fingerprint
    if row[LIMIT_KEYS] and row[LIMIT_KEYS] ~= submitted[LIMIT_KEYS] then
      give_other_room_back(job, submitted, now)
    end
    row[TAG_LINES], row[LIMIT_KEYS] = submitted[TAG_LINES], submitted[LIMIT_KEYS]
    write_part(job, PAYLOAD, payload)
  end
  if takes_over or lives_longer then
    row[EXPIRES_AT] = new_expires_at and format_time(new_expires_at) or false
  end
  if (rescheduled or run_at > now) and not row[QUEUED_NEXT] then
    wake_at = run_at > now and run_at or now + wake_after
    row[PUBLISHED_AT] = (run_at > now or is_sent ~= '1') and '0' or format_time(now)
  end
  set_wake_at(job, math.min(wake_at, tonumber(row[EXPIRES_AT]) or math.huge))
  return rescheduled
end

-- Free the place of a job that was queued next and has expired: a sweep cancels the job.
local function release_next(job)
  job[1][QUEUED_NEXT], job[1][FOLLOWS_ID] = false, false
  redis.call('HDEL', follows_ids, job.id)
  write_row(job.key, job[1])
end

-- Write the submission as the job that runs after the existing one.
local function queue_next(existing)
  local expires_at = expires_in and now + expires_in
  local row = submitted
  row[QUEUED_NEXT], row[FOLLOWS_ID], row[REASON] = '1', existing_id, 'runs after ' .. existing_id
  row[RUN_AT] = delay ~= 0 and format_time(now + delay)
  row[EXPIRES_AT] = expires_at and format_time(expires_at) or false
  local job = insert_job(own_key, jobs, of_submitter, id, row, payload, options)
  redis.call('SET', next_key, id)
  add_follower(follows_ids, followers, existing, job, math.min(now + tonumber(row[LEASE]), expires_at or math.huge))
  append_history(own_history, row, row[CREATED_AT], 'queue_next', row[REASON])
  return job
end

-- Which job answers: the job of the key, or the holder of the identity?
local existing, keyed = read_job(existing_key, existing_id), key and read_key(key, now) or {}
local key_reused = keyed.job_id and keyed.fingerprint ~= fingerprint and '1' or '0'
if (keyed.job_id or redis.call('GET', identity)) ~= existing_id then
  return { 'changed' }
end
local row = existing and existing[1]
if keyed.job_id then
  -- The key outlived its job: the job was deleted, and another one may have its id.
  if not row or tonumber(row[KEY_RETAINED_UNTIL] or 0) < tonumber(keyed['until']) then
    pass_on_key(key, successor)
    return { 'changed' }
  end
elseif not row or not (row[HOLDS_IDENTITY] or row[QUEUED_NEXT]) then
  -- The row was lost (evicted, deleted by hand): nothing else would release the identity.
  hand_over_identity(identity, next_key, redis.call('GET', next_key), followers, follows_ids, existing_id, now)
  return { 'changed' }
else
  if row[QUEUED_NEXT] then
    promote(existing, existing_history, follows_ids, now, row[FOLLOWS_ID])
  end
  if release_expired(identity, existing_key, existing_history, row, now) then
    return { 'changed' }
  end
end

-- Is this submission repeated?
if keyed.submission_nonce == nonce then
  return { 'duplicate', keyed.outcome, keyed.rescheduled, '0', existing_id, existing_id, reply(existing), false }
end
local stored, stored_in = find_duplicate(duplicates, nonce), duplicates
if not stored and has_holder == '1' then -- the key had another job at first, or none
  local holder = read_row(KEYS[#KEYS - 1])
  if holder and holder[HOLDS_IDENTITY] and not is_over(holder, now) then
    stored, stored_in = find_duplicate(KEYS[#KEYS], nonce), KEYS[#KEYS]
    key_reused = stored and '0' or key_reused
  end
end
if stored then
  local _, outcome, _, rescheduled, answered_by =
    string.match(redis.call('LINDEX', stored_in, stored + 1), '^(%S+) (%S+) (%S+) (%S+) (.*)$')
  return { 'duplicate', outcome, rescheduled, key_reused, answered_by, existing_id, reply(existing), false }
end

-- Decide the outcome, and update the job that answers.
local arguments_differ = fingerprint ~= fingerprint_of(row) and '1' or '0'
local answer, answer_followers = existing, followers
local outcome, rescheduled = decide_outcome(row), '0'
if keyed.job_id then
  outcome = key_reused == '1' and 'rejected' or row[FINISHED_AT] and 'replayed' or 'attached'
else
  if outcome == 'queued_next' then
    local found = redis.call('GET', next_key)
    if found and found ~= queued_id then
      return { 'changed' }
    end
    answer, answer_followers = found and read_job(queued_key, found), queued_followers
    local is_queued = answer and answer[1][QUEUED_NEXT]
    if is_queued and not is_over(answer[1], now) then
      outcome = decide_outcome(answer[1])
    else
      local exceeded = charge(limits, key and 21 or 19, now)
      if exceeded then
        return exceeded
      end
      if is_queued then
        release_next(answer)
      end
      answer = queue_next(existing)
    end
  end
  if answer.id ~= id and update_waiting_job(answer, outcome == 'replaced') then
    rescheduled = '1'
  end
  if key and outcome ~= 'rejected' then
    local expires_at = now + key_for
    keep_key(key, answer.id, submitted, now, expires_at, outcome, rescheduled)
    answer[1][KEY_RETAINED_UNTIL] =
      format_time(math.max(tonumber(answer[1][KEY_RETAINED_UNTIL]) or expires_at, expires_at))
  end
end

bump_duplicate_count(row, 1)
write_row(existing_key, row)
if answer ~= existing then
  write_row(answer.key, answer[1])
end
append_duplicate(duplicates, nonce, format_duplicate(now, outcome, arguments_differ, rescheduled, answer.id), origin)
count_duplicates(
  duplicate_counts, duplicate_sums, existing_id, row[TASK], submitted[SUBMITTER] or '', outcome, 1, submitter_limit
)
local follower = follows == '1' and answer.id ~= id and outcome ~= 'rejected' and insert_follower(
  own_key, own_history, jobs, of_submitter, follows_ids, answer_followers, answer,
  { id = id, row = submitted, payload = payload, options = options }, now, 'follow', 'follows '
)
return { 'duplicate', outcome, rescheduled, key_reused, answer.id, answer.id, reply(answer), follower and reply(follower) }
