-- name: read_clock
#!lua flags=no-writes
-- Read the clock.
-- KEYS: any key of the ledger, which names the node
-- returns: the time
return format_time(clock())
-- name: get_many
#!lua flags=no-writes
-- Read jobs with their `wake_at`, in one atomic step.
-- KEYS: wake, leases, ended; then the jobs
-- ARGV: fields (words), optional: read only these
-- returns: one job per key, an empty one for a job that does not exist
local wake = wake_sets()
local names = {}
for name in string.gmatch(arg.fields or '', '%S+') do
  names[#names + 1] = name
end
local function read(key)
  if #names == 0 then
    return read_job(key, wake)
  end
  local job = {}
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    job[names[i]] = value or nil
  end
  job.wake_at = job.id and redis.call('ZSCORE', wake_set(wake, job), job.id) or nil
  return job.id and job
end
local jobs = {}
for i = 4, #KEYS do
  jobs[i - 3] = flatten(read(KEYS[i]) or {})
end
return jobs
-- name: find_existing
#!lua flags=allow-oom
-- Find the job that answers an idempotency key, or else the one that holds an identity.
-- KEYS: identity, and the idempotency key, if any
-- ARGV: key
-- returns: the job's id; and the time, for a holder, whose uniqueness window may be over, or ""
-- refusal: nil when there is none
local identity, key = unpack(KEYS)
local now = clock()
local keyed, holder = read_key(key, now).job_id, redis.call('GET', identity)
if keyed then
  return { keyed, '' }
end
return holder and { holder, format_time(now) }
-- name: tombstone
#!lua flags=no-writes
-- Read the tombstone of a deleted job.
-- KEYS: job, tombstones
-- ARGV: job_id
-- returns: the tombstone as a JSON array: state, finished_at, purged_at, until
-- refusal: nil when there is none, when it has expired, or when a new job has this id
local key, tombstones = unpack(KEYS)
local tombstone = redis.call('HGET', tombstones, arg.job_id)
if not tombstone or redis.call('HGET', key, 'id') or tonumber(cjson.decode(tombstone)[4]) <= clock() then
  return nil
end
return tombstone
