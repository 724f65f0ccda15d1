#!lua flags=allow-oom
-- Release the identity of a job whose uniqueness window is over, so that another job can be reopened.
-- KEYS: job, identity, history
-- ARGV: clock, job_id
-- returns: "released"
-- refusal: "held" when another job holds the identity by now, or the window is not over
local key, identity, history = unpack(KEYS)

local row = read_row(key)
local is_holder = row and row[HOLDS_IDENTITY] and redis.call('GET', identity) == ARGV[2]
return is_holder and release_expired(identity, key, history, row, clock()) and 'released' or 'held'
