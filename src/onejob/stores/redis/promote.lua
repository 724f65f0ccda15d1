#!lua flags=allow-oom
-- Update the row of a job that was queued next and got its identity from a job that ended.
-- KEYS: wake, leases, ended; job, identity, history, follows_ids
-- ARGV: job_id, ended_id, history_limit
-- refusal: nothing changes when the job does not exist or is no longer queued next
local wake = wake_sets()
local key, identity, history, follows_ids = unpack(KEYS, 4)

local job = read_job(key, wake)
if job and job.queued_next == '1' and redis.call('GET', identity) == arg.job_id then
  promote(key, history, wake, follows_ids, job, clock(), arg.ended_id)
end
return {}
