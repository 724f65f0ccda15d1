-- name: get_many
#!lua flags=no-writes
-- Read jobs with their `wake_at`, in one atomic step.
-- KEYS: wake, then the jobs
-- returns: one job per key, an empty one for a job that does not exist
local wake = KEYS[1]
local jobs = {}
for i = 2, #KEYS do
  jobs[i - 1] = flatten(read_job(KEYS[i], wake) or {})
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
