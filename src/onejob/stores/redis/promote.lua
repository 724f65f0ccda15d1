#!lua flags=allow-oom
-- Write the row of a job to which its identity was given when the job before it ended.
-- KEYS: job, identity, history, wake, following
-- ARGV: job_id, ended (the id of the job before it), history_limit
-- refusal: nothing happens when the job is gone, or no longer waits for the identity
local key, identity, history, wake, following = unpack(KEYS)

local job = read(key, wake)
if job and job.queued_next == '1' and redis.call('GET', identity) == arg.job_id then
  promote(key, history, wake, following, job, clock(), arg.ended)
end
return {}
