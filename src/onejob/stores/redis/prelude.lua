-- Prepended to every script. Every read and write of a job's row uses these functions.
--
-- Times and tokens are never formatted by Lua's tostring, which keeps only 14 digits.
-- An empty field is not stored. An argument that was not sent is nil.

local arg = {}
for i = 1, #ARGV, 2 do
  arg[ARGV[i]] = ARGV[i + 1]
end

-- An argument as a number, or nil. Anything else raises an error: scripts parse all numbers before their first write.
local function number(name)
  if arg[name] == nil then
    return nil
  end
  local value = tonumber(arg[name])
  assert(value and value == value, name .. ' is not a number')
  return value
end

-- The time in seconds, and in whole microseconds: the server's clock, unless a test sent its own.
local function clock()
  local now = number('clock')
  if now then
    return now, math.floor(now * 1000000)
  end
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000, time[1] * 1000000 + time[2]
end

-- A time as a string that parses to the same double.
local function format_time(seconds)
  return string.format('%.17g', seconds)
end

-- A count or a token as a string: exact up to 2^53.
local function format_integer(count)
  return string.format('%.0f', count)
end

-- Whether a word is in a space-separated list.
local function contains(words, word)
  return string.find(' ' .. words .. ' ', ' ' .. word .. ' ', 1, true) ~= nil
end

-- Whether a request is one of the last eight of a job or a quota.
local function is_repeated(row, request)
  return string.find(' ' .. (row.requests or ''), ' ' .. request .. ' ', 1, true) ~= nil
end

-- The last eight request ids (16 digits each) of a job or a quota, the new one first.
local function add_request(row, request)
  return string.sub(request .. ' ' .. (row.requests or ''), 1, 136)
end

-- The fields of a hash; empty when the key does not exist.
local function read_hash(key)
  local flat, fields = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end

-- The sorted sets that have `wake_at`: the first keys of each script that reads or writes it. The set of the waiting
-- jobs of a task is named by the job's row: the first key is the prefix of these sets.
local function wake_sets()
  return { waiting = KEYS[1], running = KEYS[2], ended = KEYS[3] }
end

-- The sorted set that has the `wake_at` of a job: each job is in one of them.
local function wake_set(wake, job)
  if job.lease_until then
    return wake.running
  elseif job.finished_at and job.canvas_pending ~= '1' then
    return wake.ended
  end
  return wake.waiting .. (job.wake_task or job.task)
end

-- A job's fields and its `wake_at`, or nil when the job does not exist.
local function read_job(key, wake)
  local job = read_hash(key)
  if not job.id then
    return nil
  end
  job.wake_at = redis.call('ZSCORE', wake_set(wake, job), job.id) or nil
  return job
end

-- Set fields of a job, in Redis and in the Lua table.
local function write_job(key, job, fields)
  local set, cleared = {}, {}
  for name, value in pairs(fields) do
    if value == '' then
      job[name] = nil
      cleared[#cleared + 1] = name
    else
      job[name] = value
      set[#set + 1] = name
      set[#set + 1] = value
    end
  end
  if #cleared > 0 then
    redis.call('HDEL', key, unpack(cleared))
  end
  if #set > 0 then
    redis.call('HSET', key, unpack(set))
  end
end

-- Set a job's `wake_at`, in Redis and in the Lua table; `previous`: the sorted set that it was in before the change.
local function set_wake_at(wake, job, seconds, previous)
  local set = wake_set(wake, job)
  if previous and previous ~= set then
    redis.call('ZREM', previous, job.id)
  end
  job.wake_at = format_time(seconds)
  redis.call('ZADD', set, job.wake_at, job.id)
end

-- Write the row of a submission; `job` has the fields that are not in the submission.
local function insert_job(key, jobs, now, job)
  local fields = {
    id = arg.id, task = arg.task, identity = arg.identity, fingerprint = arg.fingerprint, submission_nonce = arg.nonce,
    submitter = arg.submitter ~= '' and arg.submitter or nil, source = arg.source, payload = arg.payload, options = arg.options,
    route = arg.route ~= '' and arg.route or nil, priority_rank = arg.priority_rank, state = 'queued', queued_next = '0', token = '0', attempt = '0',
    retries = arg.retries, crashes = '0', lease = arg.lease, created_at = format_time(now), published = '0',
    cancel = '0', canvas_pending = arg.canvas, duplicate_count = '0', wake_task = arg.wake_task,
  }
  for name, value in pairs(job) do
    fields[name] = value
  end
  write_job(key, job, fields)
  redis.call('ZADD', jobs, job.created_at, job.id)
  return job
end

-- Make a follower point to a job; it is due when that ends, and is looked at after one lease at the latest.
local function add_follower(wake, follows_ids, followers, follower, wake_at)
  redis.call('HSET', followers, follower.id, follower.wake_task or follower.task)
  redis.call('HSET', follows_ids, follower.id, follower.follows_id)
  set_wake_at(wake, follower, wake_at)
end

-- Make a follower due now, unless it runs. Its row is not a key of this script; the job that it follows has its task.
local function wake_follower(wake, follower_id, task, now)
  redis.call('ZADD', wake.waiting .. task, 'XX', format_time(now), follower_id)
end

-- Write the row of a follower: a job that holds no identity and ends as another one ends, which makes it due; if the
-- followed job has ended already, it is due at once.
local function insert_follower(key, jobs, wake, follows_ids, followers, followed, now, reason)
  local job = insert_job(key, jobs, now, {
    holds_identity = '0', follows_id = followed.id, run_at = format_time(now), reason = reason .. followed.id,
  })
  add_follower(wake, follows_ids, followers, job, followed.finished_at and now or now + number('lease'))
  return job
end

-- A job as the reply to the client: names and values in turn.
local function flatten(job)
  local flat = {}
  for name, value in pairs(job) do
    if name ~= 'requests' then
      flat[#flat + 1] = name
      flat[#flat + 1] = value
    end
  end
  return flat
end

-- Append an entry to a job's history, and trim the history to its newest entries.
local function append_history(history, job, now, event, detail)
  local entry = { format_time(now), event, job.state, job.attempt, job.node or '', detail }
  redis.call('RPUSH', history, cjson.encode(entry))
  redis.call('LTRIM', history, -tonumber(arg.history_limit), -1)
end

-- Give an identity to the job that is queued next and return its id; without one, release the identity. The row of that
-- job is not a key of this script: the script `promote` updates it, or else `attach` or a sweep, which find it by the
-- identity key that names it.
local function hand_over_identity(identity, next_key, wake, followers, now)
  local next_id = redis.call('GET', next_key)
  if not next_id then
    redis.call('DEL', identity)
    return nil
  end
  redis.call('SET', identity, next_id)
  redis.call('DEL', next_key)
  local task = redis.call('HGET', followers, next_id)
  if task then
    wake_follower(wake, next_id, task, now)
  end
  return next_id
end

-- Make a job that was queued next the holder of its identity, whose key names it already.
local function promote(key, history, wake, follows_ids, job, now, ended_id)
  local wake_at = math.max(tonumber(job.run_at), now)
  redis.call('HDEL', follows_ids, job.id)
  write_job(key, job, { holds_identity = '1', queued_next = '0', follows_id = '', reason = 'promoted' })
  set_wake_at(wake, job, math.min(wake_at, tonumber(job.expires_at) or wake_at))
  append_history(history, job, now, 'promote', 'promoted when ' .. ended_id .. ' ended')
end

-- Release the identity of its holder, if the holder's uniqueness window is over. Returns whether it was released.
local function release_expired(identity, key, history, job, now)
  if not job.identity_until or tonumber(job.identity_until) > now then
    return false
  end
  redis.call('DEL', identity)
  write_job(key, job, { holds_identity = '0' })
  append_history(history, job, now, 'release_identity', arg.window_over)
  return true
end

-- The stored answer to the first submission with this idempotency key; empty for a new or an expired key.
local function read_key(key, now)
  local keyed = arg.key and read_hash(key) or {}
  return tonumber(keyed['until'] or now) > now and keyed or {}
end

-- Store a job as the answer to the idempotency key of this submission, if it has one, for `seconds`.
local function keep_key(key, job_key, job, now, seconds, outcome, rescheduled)
  if not arg.key then
    return
  end
  local expires_at = now + seconds
  redis.call(
    'HSET', key, 'job_id', job.id, 'fingerprint', arg.fingerprint, 'until', format_time(expires_at),
    'submission_nonce', arg.nonce, 'outcome', outcome, 'rescheduled', rescheduled
  )
  -- The TTL is longer than `until`, which alone decides: a clock may be set back. Redis refuses TTLs that are too long.
  redis.call('EXPIRE', key, format_integer(math.ceil(math.min(seconds, 2 ^ 31) + 3600)))
  expires_at = math.max(tonumber(job.key_retained_until) or expires_at, expires_at)
  write_job(job_key, job, { key_retained_until = format_time(expires_at) })
end

-- The stored duplicate of a submission, as JSON, or nil. The JSON array begins with the submission's nonce.
local function find_duplicate(duplicates, nonce)
  local start = string.gsub(cjson.encode({ nonce }), '%]$', ',')
  for _, duplicate in ipairs(redis.call('LRANGE', duplicates, 0, -1)) do
    if string.sub(duplicate, 1, #start) == start then
      return duplicate
    end
  end
  return nil
end

-- Store duplicates of a job, of which the newest are kept. A redelivered message has no nonce; only its latest duplicate
-- is kept, as the last element.
local function store_duplicates(duplicates, now, nonces, outcome, answered_by, arguments_differ, rescheduled)
  local redelivery = find_duplicate(duplicates, '')
  if redelivery then
    redis.call('LREM', duplicates, -1, redelivery)
  end
  for _, nonce in ipairs(nonces) do
    local duplicate = cjson.encode({
      nonce, format_time(now), outcome, answered_by, arg.source, arg.submitter, arg.host, arg.fingerprint,
      arguments_differ, rescheduled,
    })
    if nonce == '' then
      redelivery = duplicate
    else
      redis.call('RPUSH', duplicates, duplicate)
    end
  end
  redis.call('LTRIM', duplicates, -tonumber(arg.duplicate_limit), -1)
  if redelivery then
    redis.call('RPUSH', duplicates, redelivery)
  end
end

-- Count duplicates of a job: in the counts of the job, which end with it, and in the sums of its task. The field of the
-- task alone has the number of its sums, which is limited.
local function count_duplicates(counts, sums, job, outcome, number)
  redis.call('HINCRBY', counts, outcome .. ' ' .. job.id, number)
  local field = cjson.encode({ job.task, arg.submitter, outcome })
  if redis.call('HINCRBY', sums, field, number) ~= number then
    return
  end
  local task = cjson.encode({ job.task })
  if redis.call('HINCRBY', sums, task, 1) > tonumber(arg.submitter_limit) then
    redis.call('HDEL', sums, field)
    redis.call('HINCRBY', sums, task, -1)
    redis.call('HINCRBY', sums, cjson.encode({ job.task, arg.other_submitters, outcome }), number)
  end
end

-- Add duplicates to the count in the job's row.
local function bump_duplicate_count(key, job, number)
  write_job(key, job, { duplicate_count = format_integer(tonumber(job.duplicate_count) + number) })
end
