-- name: read_clock
#!lua flags=no-writes
-- Read the clock.
-- KEYS: any key of the ledger, which names the node
-- ARGV: clock
-- returns: the time
return format_time(clock())
-- name: get_many
#!lua flags=no-writes
-- Read jobs with their `wake_at`, in one atomic step.
-- KEYS: wake, leases, ended; then the jobs
-- ARGV: clock, the number of the last element to read; the ids
-- returns: one job per key, an empty one for a job that does not exist
local jobs = {}
for i = 4, #KEYS do
  local job = read_job(KEYS[i], ARGV[i - 1], ARGV[2])
  jobs[i - 3] = job and reply(job) or {}
end
return jobs
-- name: find_existing
#!lua flags=allow-oom
-- Find the job that answers an idempotency key, or else the job that holds an identity.
-- KEYS: identity, and the idempotency key, if any
-- returns: the job's id; the time, for a holder, whose uniqueness window may be over, or ""; until when the key is retained,
--          or ""
-- refusal: nil when there is none
local identity, key = unpack(KEYS)
local now = clock()
local keyed, holder = key and read_key(key, now) or {}, redis.call('GET', identity)
if keyed.job_id then
  return { keyed.job_id, '', keyed['until'] }
end
return holder and { holder, format_time(now), '' }
-- name: tombstone
#!lua flags=no-writes
-- Read the tombstone of a deleted job.
-- KEYS: job, tombstones
-- ARGV: clock, job_id
-- returns: the tombstone as a JSON array: state, finished_at, purged_at, until
-- refusal: nil when there is none, when it has expired, or when a new job has this id
local key, tombstones = unpack(KEYS)
local tombstone = redis.call('HGET', tombstones, ARGV[2])
if not tombstone or redis.call('EXISTS', key) == 1 or tonumber(cjson.decode(tombstone)[4]) <= clock() then
  return nil
end
return tombstone
