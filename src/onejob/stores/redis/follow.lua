#!lua
-- Write a follower: a queued job that holds no identity and ends as another job ends.
-- KEYS: wake, leases, ended; job, history, jobs, follows_ids; the followed job and its followers
-- ARGV: the fields of the submission, history_limit
-- returns: the job, or the row that has its id already
-- refusal: nil when the followed job does not exist
local wake = wake_sets()
local key, history, jobs, follows_ids, followed_key, followers = unpack(KEYS, 4)

local own = read_job(key, wake)
if own then
  return flatten(own)
end
local followed = read_job(followed_key, wake)
if not followed then
  return nil
end
local now = clock()
local job = insert_follower(key, jobs, wake, follows_ids, followers, followed, now, 'waits for the end of ')
append_history(history, job, now, 'wait', job.reason)
return flatten(job)
