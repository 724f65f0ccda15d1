-- name: put_limits
#!lua
-- Write values of limits.
-- KEYS: limits
-- ARGV: clock; kind and key ("set customer=42"), and the value (running, interval, burst, until and rate, "-" for none), in turn
-- returns: nothing
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
-- name: delete_limit
#!lua flags=allow-oom
-- KEYS: limits
-- ARGV: clock, kind and key
-- returns: nothing
redis.call('HDEL', KEYS[1], ARGV[2])
-- name: spend
#!lua flags=allow-oom
-- Take tokens of the rate of a key, also more than it has; a negative amount is given back.
-- KEYS: limits
-- ARGV: clock, key, amount
-- returns: nothing
local now = clock()
local key, value = ARGV[2], limit_value(ARGV[2], now)
forget_over(key, value, now)
take_tokens(key, value, number(ARGV[3]), now)
-- name: free_slots
#!lua flags=allow-oom
-- Make the first jobs due that are parked on a key and have room on all their keys now, and give them that room for one
-- lease. The jobs and the sets of their keys are no declared keys: they are in the slot of all keys of the ledger.
-- KEYS: wake, leases, ended
-- ARGV: clock, key, way (of the hand-over), limit
-- returns: the jobs, each after its id; and the keys on which other jobs are parked now
local key, way, limit = ARGV[2], ARGV[3], number(ARGV[4])
local now = clock()
local set, value = parked_set(PARKED_BY_LIMIT .. key), limit_value(key, now)
local freed, moved = {}, {}

-- Make a job due, or later at its time.
local function unpark(job, wake_at, is_published, reason)
  local row = fill_row(job[1])
  leave_parked_set(job)
  row[PUBLISHED_AT], row[REASON] = is_published and format_time(now) or '0', reason
  write_row(job.key, row)
  set_wake_at(job, math.min(wake_at, tonumber(row[EXPIRES_AT]) or math.huge))
end

local function move(job, other)
  local row = fill_row(job[1])
  leave_parked_set(job)
  row[PARKED_ON], row[REASON] = PARKED_BY_LIMIT .. other, 'waits for ' .. other
  enter_parked_set(job)
  write_row(job.key, row)
  moved[#moved + 1] = other
end

-- The use of the key by a job; of a job that has other keys by now, none.
local function find_use(job)
  for _, use in ipairs(job[1][LIMIT_KEYS] and uses_of(job) or {}) do
    if use[1] == key then
      return use
    end
  end
end

-- Handle the first parked job. Returns whether the next one may have room, too.
local function free_first(id)
  local job = read_job(ledger_key('job:' .. id), id)
  if not job or job[1][PARKED_ON] ~= PARKED_BY_LIMIT .. key then
    redis.call('ZREM', set, id)
    count_waiting(PARKED_BY_LIMIT .. key)
    return true
  elseif run_at_of(job[1]) > now then
    unpark(job, run_at_of(job[1]), false, job[1][REASON])
    return true
  end
  local use = find_use(job)
  if use and not has_room(job, use, now) then
    return false
  end
  local other = job[1][LIMIT_KEYS] and find_full(job, now)
  if other then
    move(job, other)
    return true
  end
  local lease_end = now + tonumber(job[1][LEASE])
  if job[1][LIMIT_KEYS] then
    reserve_room(job, lease_end, now)
  end
  local is_plain = job[1][ROUTE] and string.sub(job[1][ROUTE], 1, 1) ~= '['
  local is_sent = not (way == 'swept' or (way == 'offered' and is_plain))
  fill_row(job[1])[RUN_AT] = format_time(now) -- so that the jobs of a key that has waited long do not pass all others
  unpark(job, way == 'swept' and now or lease_end, is_sent, 'has room on ' .. key)
  freed[#freed + 1] = id
  freed[#freed + 1] = reply(job)
  return true
end

-- Set the alarm of a rate to the time at which the first parked job has enough tokens.
local function set_alarm()
  local id = redis.call('ZRANGE', set, 0, 0)[1]
  local job = id and value and value.interval and read_job(ledger_key('job:' .. id), id, 0)
  if job then
    local use = find_use(job) or { key, 1 }
    redis.call('ZADD', ledger_key('limit_alarms'), format_time(enough_at(key, value, use[2], now)), key)
  else
    redis.call('ZREM', ledger_key('limit_alarms'), key)
  end
end

forget_over(key, value, now)
local first = redis.call('ZRANGE', set, 0, 0)[1]
while first and #freed < 2 * limit and free_first(first) do
  first = redis.call('ZRANGE', set, 0, 0)[1]
end
set_alarm()
return { freed, moved }
-- name: due_limits
#!lua flags=allow-oom
-- Take the alarms that are due, and move them by a second: only one caller gets each.
-- KEYS: limit_alarms
-- ARGV: clock, limit
-- returns: the keys, and the seconds to the next alarm ("" without one)
local now = clock()
local keys = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', format_time(now), 'LIMIT', '0', ARGV[2])
for _, key in ipairs(keys) do
  redis.call('ZADD', KEYS[1], format_time(now + 1), key)
end
local _, at = unpack(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES'))
return { keys, at and format_time(at - now) or '' }
-- name: limit_uses
#!lua flags=no-writes
-- Read the uses of keys.
-- KEYS: limits
-- ARGV: clock; the keys
-- returns: for each key the ids of the jobs that have room, and how many jobs are parked on it
local now, uses = clock(), {}
for i = 2, #ARGV do
  local key, value, ids = ARGV[i], limit_value(ARGV[i], now), {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', slots_of(key), '(' .. format_time(now), '+inf')) do
    if not (value and value.interval and string.sub(member, 1, 4) == 'run ') then
      ids[#ids + 1] = string.match(member, '^%a+ (.*)$')
    end
  end
  uses[#uses + 1] = ids
  uses[#uses + 1] = redis.call('ZCARD', parked_set(PARKED_BY_LIMIT .. key))
end
return uses
