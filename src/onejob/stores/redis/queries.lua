-- name: get_many
#!lua flags=no-writes
-- Read jobs with their alarms, as of one moment.
-- KEYS: wake, then the jobs
-- returns: one job per key, an empty one where there is none
local wake = KEYS[1]
local jobs = {}
for i = 2, #KEYS do
  jobs[i - 1] = row(read(KEYS[i], wake) or {})
end
return jobs
-- name: find_existing
#!lua flags=allow-oom
-- Find the job that answers an idempotency key, or else the one that holds an identity.
-- KEYS: identity, and key if there is one
-- ARGV: key
-- returns: the job's id
-- refusal: nil when there is none
local identity, key = unpack(KEYS)
return answered(key, clock()).job_id or redis.call('GET', identity)
-- name: tombstone
#!lua flags=no-writes
-- Read what is remembered of a job that was deleted.
-- KEYS: job, tombstones
-- ARGV: job_id
-- returns: the tombstone as a JSON array: state, finished_at, purged_at, until
-- refusal: nil when there is none, when it is too old, or when there is a job of this id again
local key, tombstones = unpack(KEYS)
local tombstone = redis.call('HGET', tombstones, arg.job_id)
if not tombstone or redis.call('HGET', key, 'id') or tonumber(cjson.decode(tombstone)[4]) <= clock() then
  return nil
end
return tombstone
