-- Put before every script. Every read and write of a job's row goes through these functions.
--
-- A text stays a text: no time and no token passes through Lua's own formatting, which keeps 14 digits only.
-- An empty field is not stored. An argument that was not sent is nil.

local arg = {}
for i = 1, #ARGV, 2 do
  arg[ARGV[i]] = ARGV[i + 1]
end

-- An argument as a number, or nil. Anything else fails here: scripts read all their numbers before their first write.
local function number(name)
  if arg[name] == nil then
    return nil
  end
  local value = tonumber(arg[name])
  assert(value and value == value, name .. ' is not a number')
  return value
end

-- Now in seconds, and in whole microseconds: this server's clock, unless a test sent its own.
local function clock()
  local clock = number('clock')
  if clock then
    return clock, math.floor(clock * 1000000)
  end
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000, time[1] * 1000000 + time[2]
end

-- A time as a text that reads back as the same number.
local function text(seconds)
  return string.format('%.17g', seconds)
end

-- A count or a token as a text: exact up to 2^53.
local function whole(count)
  return string.format('%.0f', count)
end

-- Whether a word is in a list of words with spaces between them.
local function has(words, word)
  return string.find(' ' .. words .. ' ', ' ' .. word .. ' ', 1, true) ~= nil
end

-- Whether a request is one of the job's last eight.
local function known(job, request)
  return string.find(' ' .. (job.requests or ''), ' ' .. request .. ' ', 1, true) ~= nil
end

-- The job's last eight requests (of 16 digits each) with a new one at their head.
local function remember(job, request)
  return string.sub(request .. ' ' .. (job.requests or ''), 1, 136)
end

-- The fields of a hash; none when there is no such hash.
local function hash(key)
  local pairs_of, fields = redis.call('HGETALL', key), {}
  for i = 1, #pairs_of, 2 do
    fields[pairs_of[i]] = pairs_of[i + 1]
  end
  return fields
end

-- A job's fields and its alarm, or nil when there is no such job.
local function read(key, wake)
  local job = hash(key)
  if not job.id then
    return nil
  end
  job.wake_at = redis.call('ZSCORE', wake, job.id) or nil
  return job
end

-- Set fields of a job, in the store and in the table.
local function write(key, job, fields)
  local set, gone = {}, {}
  for name, value in pairs(fields) do
    if value == '' then
      job[name] = nil
      gone[#gone + 1] = name
    else
      job[name] = value
      set[#set + 1] = name
      set[#set + 1] = value
    end
  end
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
  end
  if #set > 0 then
    redis.call('HSET', key, unpack(set))
  end
end

-- Set a job's alarm, in the store and in the table.
local function alarm(wake, id, job, seconds)
  job.wake_at = text(seconds)
  redis.call('ZADD', wake, job.wake_at, id)
end

-- Write a submission's row, with `job` for what the submission does not say.
local function enter(key, jobs, now, job)
  local fields = {
    id = arg.id, task = arg.task, identity = arg.identity, fingerprint = arg.fingerprint, submission_nonce = arg.nonce,
    submitter = arg.submitter ~= '' and arg.submitter or nil, payload = arg.payload, options = arg.options, priority_rank = arg.priority_rank, state = 'queued', queued_next = '0',
    token = '0', attempt = '0', retries = arg.retries, crashes = '0', lease = arg.lease, created_at = text(now),
    published = '0', cancel = '0', canvas_pending = arg.canvas, duplicate_count = '0',
  }
  for name, value in pairs(job) do
    fields[name] = value
  end
  write(key, job, fields)
  redis.call('ZADD', jobs, job.created_at, job.id)
  return job
end

-- Write a submission's row as a job that holds no identity and waits for the end of another one: it sleeps until then, or
-- its alarm rings at once when that one has ended.
local function follow(key, jobs, wake, following, followers, followed, now, does)
  local job = enter(key, jobs, now, {
    holds_identity = '0', follows_id = followed.id, run_at = text(now), reason = does .. followed.id,
  })
  redis.call('SADD', followers, arg.id)
  redis.call('HSET', following, arg.id, followed.id)
  if followed.finished_at then
    alarm(wake, arg.id, job, now)
  end
  return job
end

-- A job as the client wants it: names and values in turn.
local function row(job)
  local flat = {}
  for name, value in pairs(job) do
    if name ~= 'requests' then
      flat[#flat + 1] = name
      flat[#flat + 1] = value
    end
  end
  return flat
end

-- Write one line of a job's history, and keep the newest ones.
local function note(history, job, now, event, detail)
  local line = { text(now), event, job.state, job.attempt, job.node or '', detail }
  redis.call('RPUSH', history, cjson.encode(line))
  redis.call('LTRIM', history, -tonumber(arg.history_limit), -1)
end

-- Give an identity to the job that is queued next, whose id is returned, or else free it. That job's row is a key that
-- `promote` is called with; until then the sweeper, and whoever meets it, knows it by the identity that names it.
local function pass_on(identity, next_key, wake, now)
  local heir = redis.call('GET', next_key)
  if not heir then
    redis.call('DEL', identity)
    return nil
  end
  redis.call('SET', identity, heir)
  redis.call('DEL', next_key)
  redis.call('ZADD', wake, text(now), heir)
  return heir
end

-- Let a job that was queued next begin to wait for its run: the identity names it already.
local function promote(key, history, wake, following, job, now, ended)
  local wake_at = math.max(tonumber(job.run_at), now)
  redis.call('HDEL', following, job.id)
  write(key, job, { holds_identity = '1', queued_next = '0', follows_id = '', reason = 'it is its turn' })
  alarm(wake, job.id, job, math.min(wake_at, tonumber(job.expires_at) or wake_at))
  note(history, job, now, 'promote', 'its turn came when ' .. ended .. ' ended')
end

-- What is kept of the first submission with this idempotency key and of its answer; nothing when the key is new.
local function answered(key, now)
  local first = arg.key and hash(key) or {}
  return tonumber(first['until'] or now) > now and first or {}
end

-- Let a job answer the idempotency key of this submission, if it has one, for so many seconds.
local function keep_key(key, job_key, job, now, seconds, outcome, rescheduled)
  if not arg.key then
    return
  end
  local till = now + seconds
  redis.call(
    'HSET', key, 'job_id', job.id, 'fingerprint', arg.fingerprint, 'until', text(till), 'submission_nonce', arg.nonce,
    'outcome', outcome, 'rescheduled', rescheduled
  )
  -- Later than `until`, which alone decides: a clock may be set back. And Redis refuses what is too far away.
  redis.call('EXPIRE', key, whole(math.ceil(math.min(seconds, 2 ^ 31) + 3600)))
  write(job_key, job, { key_retained_until = text(math.max(tonumber(job.key_retained_until) or till, till)) })
end

-- The duplicate that a submission has left with a job before, as a text, or nil. It begins with the submission's nonce.
local function duplicate_of(duplicates, nonce)
  local start = string.gsub(cjson.encode({ nonce }), '%]$', ',')
  for _, duplicate in ipairs(redis.call('LRANGE', duplicates, 0, -1)) do
    if string.sub(duplicate, 1, #start) == start then
      return duplicate
    end
  end
  return nil
end

-- Keep duplicates on the job that was met, among the newest ones, and count them for ever. That of a message which came again
-- (it has no nonce) has a place of its own, the last, for the latest one.
local function leave_duplicates(duplicates, duplicate_stats, job, now, nonces, outcome, answer, arguments_differ, rescheduled)
  local last = duplicate_of(duplicates, '')
  if last then
    redis.call('LREM', duplicates, -1, last)
  end
  for _, nonce in ipairs(nonces) do
    local duplicate = cjson.encode({
      nonce, text(now), outcome, answer, arg.source, arg.submitter, arg.host, arg.fingerprint, arguments_differ, rescheduled,
    })
    if nonce == '' then
      last = duplicate
    else
      redis.call('RPUSH', duplicates, duplicate)
    end
  end
  redis.call('LTRIM', duplicates, -tonumber(arg.duplicate_limit), -1)
  if last then
    redis.call('RPUSH', duplicates, last)
  end
  redis.call('HINCRBY', duplicate_stats, cjson.encode({ job.task, job.identity, arg.submitter, outcome }), #nonces)
end

-- Count duplicates on the job that they have met.
local function count(key, job, number)
  write(key, job, { duplicate_count = whole(tonumber(job.duplicate_count) + number) })
end
