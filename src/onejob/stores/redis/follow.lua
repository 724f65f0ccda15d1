#!lua
-- Write a follower: a queued job that holds no identity and ends as another job ends.
-- KEYS: wake, leases, ended; job, history, jobs, the set of its submitter, follows_ids; the followed job and its followers; the quotas
-- ARGV: clock, the id of the followed job; of the submission id, row (`GIVEN`, packed), payload, options, limits (of its
--       quotas, see `charge`)
-- returns: the job, or the row that has its id already
-- refusal: nil when the followed job does not exist; "exceeded", see `charge`
local key, history, jobs, of_submitter, follows_ids, followed_key, followers = unpack(KEYS, 4)
local followed_id, id, given, payload, options, limits = unpack(ARGV, 2)

local own = read_job(key, id)
if own then
  return reply(own)
end
local followed = read_job(followed_key, followed_id, 0)
if not followed then
  return nil
end
local now, created_at = clock()
local exceeded = charge(limits, 11, now)
if exceeded then
  return exceeded
end
local follower = { id = id, row = new_row(given, created_at), payload = payload, options = options }
return reply(insert_follower(
  key, history, jobs, of_submitter, follows_ids, followers, followed, follower, now, 'wait', 'waits for the end of '
))
