#!lua
-- Write a queued job that holds no identity and waits for the end of another one.
-- KEYS: job, history, wake, jobs, following; the followed job and its followers
-- ARGV: the fields of the submission, history_limit
-- returns: the job, or the row that has its id already
-- refusal: nothing when there is no such followed job
local key, history, wake, jobs, following, followed_key, followers = unpack(KEYS)

local own = read(key, wake)
if own then
  return row(own)
end
local followed = read(followed_key, wake)
if not followed then
  return nil
end
local now = clock()
local job = follow(key, jobs, wake, following, followers, followed, now, 'waits for the end of ')
note(history, job, now, 'wait', job.reason)
return row(job)
