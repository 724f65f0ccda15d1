#!lua
-- Write a queued job that holds no identity and waits for the end of another one.
-- KEYS: job, history, wake, jobs, following; the leader and its followers
-- ARGV: the fields of the submission, history_limit
-- returns: the job, or the row that has its id already
-- refusal: nothing when there is no such leader
local key, history, wake, jobs, following, leader_key, followers = unpack(KEYS)

local own = read(key, wake)
if own then
  return row(own)
end
local leader = read(leader_key, wake)
if not leader then
  return nil
end
local now = moment()
local job = follow(key, jobs, wake, following, followers, leader, now, 'waits for the end of ')
note(history, job, now, 'wait', job.reason)
return row(job)
