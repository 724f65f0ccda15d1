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
local function moment()
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

-- A job's fields and its alarm, or nil when there is no such job.
local function read(key, wake)
  local pairs_of = redis.call('HGETALL', key)
  if #pairs_of == 0 then
    return nil
  end
  local job = {}
  for i = 1, #pairs_of, 2 do
    job[pairs_of[i]] = pairs_of[i + 1]
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

-- The fields that every new row has.
local function fresh(now)
  return {
    id = arg.id, task = arg.task, identity = arg.identity, fingerprint = arg.fingerprint, submission = arg.nonce,
    payload = arg.payload, state = 'queued', token = '0', attempt = '0', retries = arg.retries, crashes = '0',
    lease = arg.lease, created_at = text(now), published = '0', cancel = '0', undelivered = arg.canvas, duplicates = '0',
  }
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
