#!lua flags=allow-oom
-- Release the identity of a job whose uniqueness window is over, so that another job can be reopened.
-- KEYS: job, identity, history
-- ARGV: job_id, window_over, history_limit
-- returns: "released"
-- refusal: "held" when another job holds the identity by now, or the window is not over
local key, identity, history = unpack(KEYS)

local job = read_hash(key)
local is_holder = job.holds_identity == '1' and redis.call('GET', identity) == arg.job_id
return is_holder and release_expired(identity, key, history, job, clock()) and 'released' or 'held'
