-- name: take_due
#!lua flags=allow-oom
-- Take the jobs whose `wake_at` is due, and postpone it: first runs whose lease has expired, then the others. Only the
-- wake sets are read that may have a due job by the scores in `wake`, which are corrected then: an idle sweep executes
-- the same three commands for any number of tasks.
-- KEYS: wake, leases, ended, and the wake sets of the tasks whose waiting jobs are taken
-- ARGV: clock, limit, hold (seconds), expired_runs ("1", or "": not these)
-- returns: their new `wake_at`, their ids, the longest due first, and the number of the key that has each
local limit, now = number(ARGV[2]), clock()
local wake_at = format_time(now + number(ARGV[3]))
local ids, found_in, heads = {}, {}, {}

-- The first due job of a sorted set after those that were taken, or nil.
local function next_head(number_of_key, taken)
  local due = { '-inf', format_time(now), 'WITHSCORES', 'LIMIT', format_integer(taken), '1' }
  local id, score = unpack(redis.call('ZRANGEBYSCORE', KEYS[number_of_key], unpack(due)))
  return id and { id = id, at = tonumber(score), key = number_of_key, taken = taken }
end

local function take(head)
  ids[#ids + 1], found_in[#found_in + 1] = head.id, head.key
  return next_head(head.key, head.taken + 1)
end

-- The numbers of the keys of the wake sets that may have a due job.
local function find_due_sets()
  local numbers, found = {}, {}
  for i = 4, #KEYS do
    numbers[KEYS[i]] = i
  end
  for _, set in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', format_time(now))) do
    found[#found + 1] = numbers[set]
  end
  return found
end

-- Set the score of a wake set in `wake` to the earliest `wake_at` of its jobs.
local function correct_earliest(set)
  local _, earliest = unpack(redis.call('ZRANGEBYSCORE', set, '-inf', '+inf', 'WITHSCORES', 'LIMIT', '0', '1'))
  if earliest then
    redis.call('ZADD', KEYS[1], earliest, set)
  else
    redis.call('ZREM', KEYS[1], set)
  end
end

local expired = ARGV[4] == '1' and next_head(2, 0)
while expired and #ids < limit do
  expired = take(expired)
end
local due_sets = find_due_sets()
heads[1] = next_head(3, 0)
for _, number_of_key in ipairs(due_sets) do
  heads[#heads + 1] = next_head(number_of_key, 0)
end
while #heads > 0 and #ids < limit do
  local first = 1
  for i = 2, #heads do
    if heads[i].at < heads[first].at then
      first = i
    end
  end
  local rest = take(heads[first])
  if rest then
    heads[first] = rest
  else
    table.remove(heads, first)
  end
end
for i, id in ipairs(ids) do
  redis.call('ZADD', KEYS[found_in[i]], wake_at, id)
end
for _, number_of_key in ipairs(due_sets) do
  correct_earliest(KEYS[number_of_key])
end
return { wake_at, ids, found_in }
-- name: read_due
#!lua flags=allow-oom
-- Read jobs that were taken, and delete the entries of rows that were lost (evicted, deleted by hand), or that belong
-- into another sorted set.
-- KEYS: wake, leases, ended; then for each job: the sorted set that it was taken from, and the job
-- ARGV: clock, wake_at (as `take_due` has set it), then the ids
-- returns: one job per id, and "lost" for a lost row
-- refusal: an empty job for a job that was changed meanwhile: this sweeper skips it
local wake_at, jobs = tonumber(ARGV[2]), {} -- as numbers: servers write scores in several ways
for i = 1, #ARGV - 2 do
  local set, job_id = KEYS[2 * i + 2], ARGV[i + 2]
  local job = read_job(KEYS[2 * i + 3], job_id)
  if not job or wake_set(job[1]) ~= set then
    redis.call('ZREM', set, job_id)
  end
  jobs[i] = not job and { 'lost' } or tonumber(read_wake_at(job)) == wake_at and reply(job) or {}
end
return jobs
