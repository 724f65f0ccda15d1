-- The functions of the scripts. A script is loaded with the functions that it uses. The names in capitals are constants of
-- `onejob.stores.redis.rows` and `.client`: numbers stand in their places in the script that is sent.
--
-- Times and tokens are texts that are never formatted by Lua's tostring, which keeps only 14 digits. The first argument
-- of every script is the time, for tests, or ''.

-- An argument as a number; nil for ''. Anything else raises an error: scripts parse all numbers before their first write.
local function number(text)
  if text == '' then
    return nil
  end
  local value = tonumber(text)
  assert(value and value == value, 'an argument is not a number: ' .. text)
  return value
end

-- A time as a string that parses to the same double.
local function format_time(seconds)
  return string.format('%.17g', seconds)
end

-- The time in seconds, as a number and as a string that parses to it: the server's clock, unless a test sent its own.
local function clock()
  local now = number(ARGV[1])
  if now then
    return now, format_time(now)
  end
  local time = redis.call('TIME')
  local text = time[1] .. '.' .. string.sub('00000' .. time[2], -6)
  return tonumber(text), text
end

-- A count or a token as a string: exact up to 2^53.
local function format_integer(count)
  return string.format('%.0f', count)
end

-- Publish a signal; its channel is named after the first key of the script. A user whose ACL refuses it writes all the same.
local function signal(channel, key)
  redis.pcall('PUBLISH', string.sub(KEYS[1], 1, -6) .. 'signals:' .. channel, key)
end

-- Whether a word is in a space-separated list.
local function contains(words, word)
  return string.find(' ' .. words .. ' ', ' ' .. word .. ' ', 1, true) ~= nil
end

-- Whether a request is one of the last eight of a job.
local function is_repeated(requests, request)
  return requests and contains(requests, request)
end

-- The last eight request ids (16 digits each, and '+' after a request that has pushed a message), the new id first.
local function add_request(requests, request)
  return string.sub(request .. ' ' .. (requests or ''), 1, 144)
end

-- The fields of a hash; empty when the key does not exist.
local function read_hash(key)
  local flat, fields = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end

-- The workers whose heartbeats have expired, or have not: name, time of the latest heartbeat and registration, in turn.
local function list_workers(heartbeats, registrations, expired, now)
  local flat = {}
  for node, heartbeat in pairs(read_hash(heartbeats)) do
    local seen_at, expires_at = string.match(heartbeat, '(.*) (.*)')
    if (tonumber(expires_at) <= now) == expired then
      flat[#flat + 1] = node
      flat[#flat + 1] = seen_at
      flat[#flat + 1] = redis.call('HGET', registrations, node) or '{}'
    end
  end
  return flat
end

-- A row with all its fields, so that any can be set: fields that a new job never has were left out.
local function fill_row(row)
  for i = #row + 1, ROW_SIZE do
    row[i] = false
  end
  return row
end

-- A job: the elements of its list, of which the first one, the row, is unpacked; also its `key` and its `id`. Nil when
-- it does not exist. `last`: the last element to read.
local function read_job(key, id, last)
  local job = redis.call('LRANGE', key, 0, last or PARTS_READ)
  if not job[1] then
    return nil
  end
  job[1], job.key, job.id = cmsgpack.unpack(job[1]), key, id
  return job
end

-- The row of a job, or nil.
local function read_row(key)
  local packed = redis.call('LINDEX', key, 0)
  return packed and cmsgpack.unpack(packed)
end

local function write_row(key, row)
  redis.call('LSET', key, 0, cmsgpack.pack(row))
end

-- Set another element of a job, in Redis and in the Lua table.
local function write_part(job, position, value)
  job[position] = value
  redis.call('LSET', job.key, position - 1, value)
end

-- The sorted set that has the `wake_at` of a job: each job is in one wake set. The first keys of each script that reads
-- or writes `wake_at` are the wake sets: the prefix of the sets of the waiting jobs of each task, the set of the running
-- jobs, and the set of the ended jobs. The prefix itself is a sorted set of the sets of all tasks, see `keep_earliest`.
local function wake_set(row)
  if row[LEASE_UNTIL] then
    return KEYS[2]
  elseif row[FINISHED_AT] and not row[CANVAS_PENDING] then
    return KEYS[3]
  end
  return KEYS[1] .. (row[PUBLISHER_TASK] or row[TASK])
end

-- The `wake_at` of a job, or false.
local function read_wake_at(job)
  if job.wake_at == nil then
    job.wake_at = redis.call('ZSCORE', wake_set(job[1]), job.id)
  end
  return job.wake_at
end

-- Note that a job of a wake set is due at a time: the score of the set in `wake` is at most the earliest of these times.
local function keep_earliest(set, wake_at)
  redis.call('ZADD', KEYS[1], 'LT', wake_at, set)
end

-- Set a job's `wake_at`, in Redis and in the Lua table; `previous`: the sorted set that it was in before the change.
local function set_wake_at(job, seconds, previous)
  local set = wake_set(job[1])
  if previous and previous ~= set then
    redis.call('ZREM', previous, job.id)
  end
  job.wake_at = format_time(seconds)
  redis.call('ZADD', set, job.wake_at, job.id)
  if set ~= KEYS[2] and set ~= KEYS[3] then
    keep_earliest(set, job.wake_at)
  end
end

-- A key of the ledger, by its name after the prefix of all keys.
local function ledger_key(name)
  return string.match(KEYS[1], '^%b{}:') .. name
end

-- The sorted set of the jobs that are parked on a pause, or on a key of a limit.
local function parked_set(parked_on)
  return ledger_key('parked:' .. parked_on)
end

-- Keep the number of the jobs that are parked on a key of a limit.
local function count_waiting(parked_on)
  if string.sub(parked_on, 1, #PARKED_BY_LIMIT) ~= PARKED_BY_LIMIT then
    return
  end
  local key, count = string.sub(parked_on, #PARKED_BY_LIMIT + 1), redis.call('ZCARD', parked_set(parked_on))
  if count > 0 then
    redis.call('ZADD', ledger_key('waiting'), count, key)
  else
    redis.call('ZREM', ledger_key('waiting'), key)
  end
end

-- Park a job on nothing. Its row is written afterwards.
local function leave_parked_set(job)
  local parked_on = job[1][PARKED_ON]
  if parked_on then
    redis.call('ZREM', parked_set(parked_on), job.id)
    job[1][PARKED_ON] = false
    count_waiting(parked_on)
  end
end

-- The place of a job among those that are parked on the same: the most urgent first, and then the oldest.
local function place_of(row)
  return tonumber(row[CREATED_AT]) - tonumber(row[PRIORITY_RANK] or 0) * 1e11
end

-- Add a job to the set of what it is parked on, if it is.
local function enter_parked_set(job)
  local row = job[1]
  if row[PARKED_ON] then
    redis.call('ZADD', parked_set(row[PARKED_ON]), format_time(place_of(row)), job.id)
    count_waiting(row[PARKED_ON])
  end
end

-- Move a job from the sorted set of its previous state to the set of its state. `indexed`: which of both states have a
-- set (words); the sets are the last keys of the script, the set of the first state last.
local function move_between_states(indexed, job, previous)
  local row, position = job[1], #KEYS
  if row[STATE] == previous then
    return
  end
  for state in string.gmatch(indexed, '%S+') do
    if state == row[STATE] then
      redis.call('ZADD', KEYS[position], row[CREATED_AT], job.id)
    elseif state == previous then
      redis.call('ZREM', KEYS[position], job.id)
    end
    position = position - 1
  end
end

-- A job as the reply to the client: its elements, and its `wake_at`.
local function reply(job)
  job[#job + 1] = read_wake_at(job)
  return job
end

-- The text of a new row: the fields that the client has packed, and the times.
local function pack_new_row(given, created_at, run_at, expires_at, key_retained_until, published_at)
  return given .. cmsgpack.pack(created_at, run_at, expires_at, key_retained_until, published_at)
end

-- The row of a submission that does not hold its identity.
local function new_row(given, created_at)
  local row = fill_row(cmsgpack.unpack(pack_new_row(given, created_at, false, false, false, '0')))
  row[HOLDS_IDENTITY], row[PARKED_ON] = false, false
  return row
end

-- Write a new job. `of_submitter`: the sorted set of its submitter, if it has one.
local function insert_job(key, jobs, of_submitter, id, row, payload, options)
  redis.call('RPUSH', key, cmsgpack.pack(row), '', payload, options, '', '', '')
  redis.call('ZADD', jobs, row[CREATED_AT], id)
  if row[SUBMITTER] then
    redis.call('ZADD', of_submitter, row[CREATED_AT], id)
  end
  return { row, '', payload, options, '', '', key = key, id = id }
end

-- Push a message to the broker's list. Returns whether it was pushed: a key of another type is the error of whoever
-- publishes the message instead, and not of the job.
local function push(destination, message)
  return type(redis.pcall('LPUSH', destination, message)) == 'number'
end

-- When a job may run.
local function run_at_of(row)
  return tonumber(row[RUN_AT] or row[CREATED_AT])
end

-- Whether a job holds its identity no longer: a completed job whose uniqueness window is over, or an expired waiting job.
local function is_over(row, now)
  return tonumber(row[IDENTITY_UNTIL] or row[EXPIRES_AT] or math.huge) <= now
end

-- The text by which the arguments of a job are compared.
local function fingerprint_of(row)
  return row[FINGERPRINT] or row[IDENTITY]
end

-- Make a follower point to a job; the follower is due when the job ends, and is looked at after one lease at the latest.
local function add_follower(follows_ids, followers, followed, follower, wake_at)
  local row = follower[1]
  redis.call('HSET', followers, follower.id, row[PUBLISHER_TASK] or row[TASK])
  redis.call('HSET', follows_ids, follower.id, followed.id)
  if not followed[1][FOLLOWED] then
    fill_row(followed[1])[FOLLOWED] = '1'
    write_row(followed.key, followed[1])
  end
  set_wake_at(follower, wake_at)
end

-- Make followers with one task due at a time, unless they run; the caller signals it. `due`: that time and an id, in
-- turn. Their rows are no keys of this script; the job that they follow has their task.
local function wake_followers(due, task, at)
  redis.call('ZADD', KEYS[1] .. task, 'XX', unpack(due))
  keep_earliest(KEYS[1] .. task, at)
end

-- Make all followers of a job due now, a thousand in a call: one call per follower would block Redis for much longer.
local function wake_all_followers(followers, follows_ids, followed_id, now)
  local flat, at, size = redis.call('HGETALL', followers), format_time(now), 2000
  for first = 1, #flat, size do
    local ids, tasks, by_task = {}, {}, {}
    for i = first, math.min(first + size, #flat) - 1, 2 do
      ids[#ids + 1], tasks[#tasks + 1] = flat[i], flat[i + 1]
    end
    for i, follows in ipairs(redis.call('HMGET', follows_ids, unpack(ids))) do
      if follows == followed_id then
        local due = by_task[tasks[i]] or {}
        by_task[tasks[i]], due[#due + 1], due[#due + 2] = due, at, ids[i]
      end
    end
    for task, due in pairs(by_task) do
      wake_followers(due, task, at)
    end
  end
end

-- Append an entry to the history of a job, which keeps its newest entries.
local function append_history(history, row, at, event, detail)
  local entry = { at, event, row[STATE], row[ATTEMPT] or '0', row[NODE] or '', detail }
  if redis.call('RPUSH', history, cjson.encode(entry)) > HISTORY_LIMIT then
    redis.call('LTRIM', history, -HISTORY_LIMIT, -1)
  end
end

-- Write the row of a follower: a job that holds no identity and ends as another job ends, which makes it due; if the
-- followed job has ended already, it is due at once.
local function insert_follower(
  key, history, jobs, of_submitter, follows_ids, followers, followed, follower, now, event, reason
)
  local row = follower.row
  row[FOLLOWS_ID], row[REASON] = followed.id, reason .. followed.id
  local job = insert_job(key, jobs, of_submitter, follower.id, row, follower.payload, follower.options)
  local wake_at = followed[1][FINISHED_AT] and now or now + tonumber(row[LEASE])
  add_follower(follows_ids, followers, followed, job, wake_at)
  append_history(history, row, row[CREATED_AT], event, row[REASON])
  return job
end

-- Give an identity to the job that is queued next and return its id; without such a job release it. The row of that
-- job is not a key of this script: the script `promote` updates it, or else `attach` or a sweep, which find it by the
-- identity key that names it.
local function hand_over_identity(identity, next_key, next_id, followers, follows_ids, ended_id, now)
  if not next_id or redis.call('HGET', follows_ids, next_id) ~= ended_id then -- none, or one that was deleted
    redis.call('DEL', identity, next_key)
    return nil
  end
  redis.call('SET', identity, next_id)
  redis.call('DEL', next_key)
  local task = redis.call('HGET', followers, next_id)
  if task then
    wake_followers({ format_time(now), next_id }, task, format_time(now))
    signal('due', '')
  end
  return next_id
end

-- Make a job that was queued next the holder of its identity, whose key names it already.
local function promote(job, history, follows_ids, now, ended_id)
  local row = job[1]
  local wake_at = math.max(run_at_of(row), now)
  redis.call('HDEL', follows_ids, job.id)
  row[HOLDS_IDENTITY], row[QUEUED_NEXT], row[FOLLOWS_ID], row[REASON] = '1', false, false, 'promoted'
  write_row(job.key, row)
  set_wake_at(job, math.min(wake_at, tonumber(row[EXPIRES_AT]) or wake_at))
  append_history(history, row, format_time(now), 'promote', 'promoted when ' .. ended_id .. ' ended')
end

-- Release the identity of a holder that holds it no longer (see `is_over`). Returns whether it was released.
local function release_expired(identity, key, history, row, now)
  if not is_over(row, now) then
    return false
  end
  redis.call('DEL', identity)
  row[HOLDS_IDENTITY] = false
  write_row(key, row)
  local reason = row[IDENTITY_UNTIL] and WINDOW_OVER or HAS_EXPIRED
  append_history(history, row, format_time(now), 'release_identity', reason)
  return true
end

-- The stored answer to the first submission with an idempotency key; empty for a new or an expired key.
local function read_key(key, now)
  local keyed = read_hash(key)
  return tonumber(keyed['until'] or now) > now and keyed or {}
end

-- Have the idempotency key of a deleted job name the job that was submitted in its place, and return that job's id;
-- without such a job the key is free.
local function pass_on_key(key, successor)
  local job_id = redis.call('GET', successor)
  if job_id then
    redis.call('HSET', key, 'job_id', job_id)
  else
    redis.call('DEL', key)
  end
  return job_id
end

-- Store a job as the answer to the idempotency key of a submission, until `expires_at`.
local function keep_key(key, job_id, submitted, now, expires_at, outcome, rescheduled)
  redis.call(
    'HSET', key, 'job_id', job_id, 'fingerprint', fingerprint_of(submitted), 'until', format_time(expires_at),
    'submission_nonce', submitted[SUBMISSION_NONCE], 'outcome', outcome, 'rescheduled', rescheduled
  )
  -- The TTL is longer than `until`, which alone decides: a clock may be set back. Redis refuses TTLs that are too long.
  redis.call('EXPIRE', key, format_integer(math.ceil(math.min(expires_at - now, 2 ^ 31) + 3600)))
end

-- Charge the quotas of a new job with one use each; `limits` (words): limit and period (seconds) of each, whose keys begin
-- at KEYS[first]. When one is used up, none is charged, and the answer of the refusal is returned: "exceeded", the
-- number of that quota, when its window ends, and the seconds until then.
local function charge(limits, first, now)
  local quotas = {}
  for limit, period in string.gmatch(limits, '(%S+) (%S+)') do
    local key = KEYS[first + #quotas]
    local used, ends = unpack(redis.call('HMGET', key, 'used', 'until'))
    if not ends or tonumber(ends) <= now then
      used, ends = '0', format_time(now + tonumber(period))
    end
    if tonumber(used) >= tonumber(limit) then
      return { 'exceeded', format_integer(#quotas), ends, format_time(ends - now) }
    end
    quotas[#quotas + 1] = { key, format_integer(used + 1), ends }
  end
  for _, quota in ipairs(quotas) do
    local key, used, ends = unpack(quota)
    redis.call('HSET', key, 'used', used, 'until', ends)
    -- The TTL is longer than `until`, which alone decides: a clock may be set back. Redis refuses TTLs that are too long.
    redis.call('EXPIRE', key, format_integer(math.ceil(math.min(ends - now, 2 ^ 31) + 3600)))
  end
end

-- The facts that a duplicate records besides its nonce and its origin.
local function format_duplicate(now, outcome, arguments_differ, rescheduled, answered_by)
  return table.concat({ format_time(now), outcome, arguments_differ, rescheduled, answered_by }, ' ')
end

-- The position of the duplicate of a submission, if it is one of the newest; false for a new submission.
local function find_duplicate(duplicates, nonce)
  return redis.call('LPOS', duplicates, nonce, 'RANK', -1, 'MAXLEN', 3 * DUPLICATE_LIMIT)
end

-- Append a duplicate of a job: three elements. The oldest duplicates beyond the limit are deleted now and then.
local function append_duplicate(duplicates, nonce, duplicate, origin)
  if redis.call('RPUSH', duplicates, nonce, duplicate, origin) >= 6 * DUPLICATE_LIMIT then
    redis.call('LTRIM', duplicates, -3 * DUPLICATE_LIMIT, -1)
  end
end

-- Add duplicates to the count in a row.
local function bump_duplicate_count(row, amount)
  row[DUPLICATE_COUNT] = format_integer(tonumber(row[DUPLICATE_COUNT] or 0) + amount)
end

-- Count duplicates of a job: in the counts of the job, which end with it, and in the sums of its task. The field of the
-- task alone has the number of its sums, which is limited.
local function count_duplicates(counts, sums, job_id, task, submitter, outcome, amount, submitter_limit)
  redis.call('HINCRBY', counts, outcome .. ' ' .. job_id, amount)
  local field = cjson.encode({ task, submitter, outcome })
  if redis.call('HINCRBY', sums, field, amount) ~= amount then
    return
  end
  local all = cjson.encode({ task })
  if redis.call('HINCRBY', sums, all, 1) > submitter_limit then
    redis.call('HDEL', sums, field)
    redis.call('HINCRBY', sums, all, -1)
    redis.call('HINCRBY', sums, cjson.encode({ task, OTHER_SUBMITTERS, outcome }), amount)
  end
end

-- The key of the sums of the costs of today (UTC): the prefix with the number of the day.
local function sums_of_today(prefix)
  return prefix .. format_integer(math.floor(clock() / 86400))
end

-- The amounts of costs, from an argument on: task, label, name and unit of each, and its limbs. An amount is a number of
-- billionths, in three limbs to the base 10^8, the lowest one first, all with its sign: a limb times a count is exact.
local function read_amounts(first)
  local amounts = {}
  for i = first, #ARGV, 7 do
    local limbs = { number(ARGV[i + 4]), number(ARGV[i + 5]), number(ARGV[i + 6]) }
    amounts[#amounts + 1] = { task = ARGV[i], label = ARGV[i + 1], name = ARGV[i + 2], unit = ARGV[i + 3], limbs = limbs }
  end
  return amounts
end

-- The name under which an amount is added up: its own, unless its task has sums of too many names. The field of task and
-- label alone has the number of names.
local function name_of_sum(day, amount, limit)
  local entry, all = cjson.encode({ amount.task, amount.label, amount.name }), cjson.encode({ amount.task, amount.label })
  if redis.call('HGET', day, entry) then
    return amount.name
  elseif tonumber(redis.call('HGET', day, all) or 0) >= limit then
    return OTHER_SUBMITTERS
  end
  redis.call('HSET', day, entry, '1')
  redis.call('HINCRBY', day, all, 1)
  return amount.name
end

-- Add an amount, so many times, to a sum: each of its limbs has a field, without a carry.
local function add_to_sum(day, amount, name, kind, count)
  for i, limb in ipairs(amount.limbs) do
    if i == 1 or limb * count ~= 0 then
      local field = cjson.encode({ amount.task, amount.label, name, amount.unit, kind, i - 1 })
      redis.call('HINCRBY', day, field, format_integer(limb * count))
    end
  end
end

-- Limits. A use is a pair of a key and a weight. The jobs that have room on a key are in its sorted set, by the time until
-- which they have it: "run" or "next" and the id of a job that runs, or is about to run. A hash has the tokens of those
-- that are about to run.

-- The value of a key that is valid now: of its own exception, of its name's, or of the definition; nil without one.
local function limit_value(key, now)
  local name = string.match(key, '^[^=]*')
  local fields = { 'set ' .. key, 'set ' .. name, 'defined ' .. name }
  for _, text in ipairs(redis.call('HMGET', ledger_key('limits'), unpack(fields))) do
    if text then
      local running, interval, burst, ends = string.match(text, '^(%S+) (%S+) (%S+) (%S+)')
      if ends == '-' or tonumber(ends) > now then
        return { running = tonumber(running), interval = tonumber(interval), burst = tonumber(burst) }
      end
    end
  end
end

local function slots_of(key)
  return ledger_key('slots:' .. key)
end

local function tokens_of(key)
  return ledger_key('tokens:' .. key)
end

-- The time at which the bucket of a key is full again, or now.
local function read_full_at(key, now)
  return math.max(tonumber(redis.call('GET', ledger_key('full_at:' .. key)) or 0), now)
end

-- Take tokens from the bucket of a rate; a negative weight is given back.
local function take_tokens(key, value, weight, now)
  if not (value and value.interval) then
    return
  end
  local full_at = read_full_at(key, now) + weight * value.interval
  if full_at > now then
    -- The TTL is longer than the time, which alone decides: a clock may be set back.
    local seconds = format_integer(math.ceil(math.min(full_at - now, 2 ^ 31) + 3600))
    redis.call('SET', ledger_key('full_at:' .. key), format_time(full_at), 'EX', seconds)
  else
    redis.call('DEL', ledger_key('full_at:' .. key))
  end
end

-- End the room of a job that is about to run, and return the tokens that it has got; nil without room.
local function remove_reservation(key, id)
  local tokens = redis.call('HGET', tokens_of(key), id)
  redis.call('HDEL', tokens_of(key), id)
  return redis.call('ZREM', slots_of(key), 'next ' .. id) == 1 and tonumber(tokens or 0) or nil
end

-- Forget the jobs whose room on a key is over, and give the tokens of those back that have not run.
local function forget_over(key, value, now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', slots_of(key), '-inf', format_time(now))) do
    local id = string.match(member, '^next (.*)$')
    if id then
      take_tokens(key, value, -remove_reservation(key, id), now)
    else
      redis.call('ZREM', slots_of(key), member)
    end
  end
end

-- The time at which the bucket of a key has enough for a weight.
local function enough_at(key, value, weight, now)
  return read_full_at(key, now) + (math.min(weight, value.burst) - value.burst) * value.interval
end

-- Whether another job that is parked on a key comes before a job.
local function is_preceded(job, key)
  local id, place = unpack(redis.call('ZRANGE', parked_set(PARKED_BY_LIMIT .. key), 0, 0, 'WITHSCORES'))
  local own = place_of(job[1])
  return id and id ~= job.id and (tonumber(place) < own or (tonumber(place) == own and id < job.id))
end

-- Whether a key has room for a job.
local function has_room(job, use, now)
  local key, value = use[1], limit_value(use[1], now)
  forget_over(key, value, now)
  if not value or redis.call('ZSCORE', slots_of(key), 'next ' .. job.id) then
    return true
  elseif is_preceded(job, key) then
    return false
  elseif value.running then
    return redis.call('ZCARD', slots_of(key)) < value.running
  end
  return enough_at(key, value, use[2], now) <= now
end

-- The uses of a job with limits.
local function uses_of(job)
  return cjson.decode(job[1][LIMIT_KEYS])
end

-- The first key of a job with limits that has no room for it, or nil.
local function find_full(job, now)
  for _, use in ipairs(uses_of(job)) do
    if not has_room(job, use, now) then
      return use[1]
    end
  end
end

-- Give a job that is about to run room on all its keys until a time: of a rate, tokens.
local function reserve_room(job, ends, now)
  for _, use in ipairs(uses_of(job)) do
    local value = limit_value(use[1], now)
    redis.call('ZADD', slots_of(use[1]), format_time(ends), 'next ' .. job.id)
    if value and value.interval then
      redis.call('HSET', tokens_of(use[1]), job.id, format_time(use[2]))
      take_tokens(use[1], value, use[2], now)
    end
  end
end

-- Give the run of a job its room on all keys until its lease ends: a slot, or of a rate the tokens that it has not got yet.
local function take_room(job, lease_until, now)
  for _, use in ipairs(uses_of(job)) do
    local value, tokens = limit_value(use[1], now), remove_reservation(use[1], job.id)
    if not value or value.running then
      redis.call('ZADD', slots_of(use[1]), format_time(lease_until), 'run ' .. job.id)
    elseif not tokens or tokens == 0 then
      take_tokens(use[1], value, use[2], now)
    end
  end
end

-- Extend the room of the run of a job.
local function renew_room(job)
  for _, use in ipairs(uses_of(job)) do
    redis.call('ZADD', slots_of(use[1]), 'XX', job[1][LEASE_UNTIL], 'run ' .. job.id)
  end
end

-- End the room of a job on its keys; tokens are given back. Returns whether other jobs are parked on one of the keys.
local function give_room_back(job, now)
  local is_waited_for = false
  for _, use in ipairs(uses_of(job)) do
    redis.call('ZREM', slots_of(use[1]), 'run ' .. job.id)
    take_tokens(use[1], limit_value(use[1], now), -(remove_reservation(use[1], job.id) or 0), now)
    is_waited_for = is_waited_for or redis.call('ZSCORE', ledger_key('waiting'), use[1])
  end
  return is_waited_for
end

-- End the room of a job that gets the arguments of a submission on the keys that those have not.
local function give_other_room_back(job, submitted, now)
  local kept = {}
  for _, use in ipairs(submitted[LIMIT_KEYS] and cjson.decode(submitted[LIMIT_KEYS]) or {}) do
    kept[use[1]] = true
  end
  for _, use in ipairs(uses_of(job)) do
    if not kept[use[1]] then
      take_tokens(use[1], limit_value(use[1], now), -(remove_reservation(use[1], job.id) or 0), now)
    end
  end
end

-- Park a job that waits for a run on a key that has no room for it.
local function park_on_key(job, history, key, now)
  local row = job[1]
  if row[PARKED_ON] == PARKED_BY_LIMIT .. key then
    return
  end
  give_room_back(job, now)
  leave_parked_set(job)
  fill_row(row)
  row[PARKED_ON], row[PUBLISHED_AT], row[REASON] = PARKED_BY_LIMIT .. key, format_time(now), 'waits for ' .. key
  enter_parked_set(job)
  write_row(job.key, row)
  set_wake_at(job, math.min(now + PARKED_SECONDS, tonumber(row[EXPIRES_AT]) or math.huge))
  append_history(history, row, format_time(now), 'park', row[REASON])
end
