-- name: take_due
#!lua flags=allow-oom
-- Take the jobs whose `wake_at` is due, and postpone it: first runs whose lease has expired, then the others.
-- KEYS: leases, ended, and the wake sets of the tasks whose waiting jobs are taken
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

local expired = ARGV[4] == '1' and next_head(1, 0)
while expired and #ids < limit do
  expired = take(expired)
end
for i = 2, #KEYS do
  heads[#heads + 1] = next_head(i, 0)
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
return { wake_at, ids, found_in }
-- name: read_due
#!lua flags=allow-oom
-- Read jobs that were taken, and delete the entries of rows that were lost (evicted, deleted by hand), or that belong
-- into another sorted set.
-- KEYS: wake, leases, ended; then for each job: the sorted set that it was taken from, and the job
-- ARGV: clock, wake_at (as `take_due` has set it), then the ids
-- returns: one job per id, and "lost" for a lost row
-- refusal: an empty one for a job that was changed meanwhile: this sweeper skips it
local wake_at, jobs = ARGV[2], {}
for i = 1, #ARGV - 2 do
  local set, job_id = KEYS[2 * i + 2], ARGV[i + 2]
  local job = read_job(KEYS[2 * i + 3], job_id)
  if not job or wake_set(job[1]) ~= set then
    redis.call('ZREM', set, job_id)
  end
  jobs[i] = not job and { 'lost' } or read_wake_at(job) == wake_at and reply(job) or {}
end
return jobs
