#!lua flags=allow-oom
-- Update the row of a job that was queued next and got its identity from a job that ended.
-- KEYS: wake, leases, ended; job, identity, history, follows_ids
-- ARGV: clock, job_id, ended_id
-- refusal: nothing changes when the job does not exist or is no longer queued next
local key, identity, history, follows_ids = unpack(KEYS, 4)
local _, job_id, ended_id = unpack(ARGV)

local job = read_job(key, job_id, 0)
if job and job[1][QUEUED_NEXT] and redis.call('GET', identity) == job_id then
  promote(job, history, follows_ids, clock(), ended_id)
end
return {}
