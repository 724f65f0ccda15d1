#!lua
-- Write queued jobs that hold their identities, and push their messages.
-- KEYS: wake, jobs; for each submission: the wake set of its task, job, identity, next, the set of its submitter (if it
--       has one), the idempotency key (if it has one), the broker's list (if it has a message) and its quotas
-- ARGV: clock; for each submission: id, row (`GIVEN`, packed), payload, options, delay, expires_in,
--       wake_after (seconds until a sweep looks at a job that is due at once), is_sent ("1": it has a `published_at`; "parked": so it has, and is parked), message ('' for none), key_for (seconds; '' without a key), has_submitter, limits (of its quotas, see `charge`)
-- returns: for each submission "admitted", the time, and whether the message was pushed ("1"); the client builds the
--          written row itself
-- refusal: "own" when a job has this id already; "keyed", the id of the job that answers the idempotency key, and the id
--          of the job that holds the identity, or "";
--          "held", the id of the job that holds the identity, and the id of the job that is queued next, or "";
--          "exceeded", see `charge`
local ARGUMENTS = 12
local jobs, next_number = KEYS[2], 3
local now, created_at = clock()

-- The next key of the script.
local function next_key()
  next_number = next_number + 1
  return KEYS[next_number - 1]
end

local function submit(first)
  local id, given, payload, options, delay, expires_in, wake_after, is_sent, message, key_for, has_submitter, limits =
    unpack(ARGV, first, first + ARGUMENTS - 1)
  local wake_set, job, identity, queued_next = next_key(), next_key(), next_key(), next_key()
  local of_submitter = has_submitter == '1' and next_key()
  local key, destination = key_for ~= '' and next_key(), message ~= '' and next_key()
  local first_quota = next_number
  for _ in string.gmatch(limits, '%S+ %S+') do
    next_key()
  end
  delay, expires_in, key_for = number(delay), number(expires_in), number(key_for)
  if redis.call('EXISTS', job) == 1 then
    return { 'own' }
  end
  local keyed = key and read_key(key, now).job_id
  if keyed then
    return { 'keyed', keyed, redis.call('GET', identity) or '' }
  end
  local exceeded = limits ~= '' and redis.call('EXISTS', identity) == 0 and charge(limits, first_quota, now)
  if exceeded then
    return exceeded
  end
  local holder = redis.call('SET', identity, id, 'NX', 'GET')
  if holder then
    return { 'held', holder, redis.call('GET', queued_next) or '' }
  end

  local run_at = delay and format_time(now + delay) or false
  local expires_at = expires_in and format_time(now + expires_in) or false
  local retained_until = key and format_time(now + key_for) or false
  local is_delayed, is_expired = delay and delay > 0, expires_in and expires_in <= 0
  local wake_at = is_delayed and run_at or format_time(now + number(wake_after))
  if expires_in and now + expires_in < tonumber(wake_at) then
    wake_at = expires_at
  end
  local row = pack_new_row(
    given, created_at, run_at, expires_at, retained_until, (is_delayed or is_sent == '') and '0' or false
  )
  redis.call('RPUSH', job, row, '', payload, options, '', '', '')
  redis.call('ZADD', jobs, created_at, id)
  if of_submitter then
    redis.call('ZADD', of_submitter, created_at, id)
  end
  redis.call('ZADD', wake_set, wake_at, id)
  keep_earliest(wake_set, wake_at)
  if is_sent == 'parked' then
    enter_parked_set({ cmsgpack.unpack(row), id = id })
  end
  if key then
    keep_key(key, id, cmsgpack.unpack(row), now, now + key_for, 'admitted', '0')
  end
  local pushed = destination and not is_delayed and not is_expired and push(destination, message)
  return { 'admitted', created_at, pushed and '1' or '' }
end

local replies = {}
for first = 2, #ARGV, ARGUMENTS do
  replies[#replies + 1] = submit(first)
end
return replies
