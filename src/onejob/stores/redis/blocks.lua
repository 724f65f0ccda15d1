-- name: put_block
#!lua
-- Write a block, unless one has its id.
-- KEYS: blocks
-- ARGV: clock, id, body (JSON)
-- returns: nothing
redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3])
-- name: delete_block
#!lua flags=allow-oom
-- KEYS: blocks
-- ARGV: clock, id
-- returns: nothing
redis.call('HDEL', KEYS[1], ARGV[2])
-- name: unpark
#!lua flags=allow-oom
-- Make jobs due that are parked on a pause.
-- KEYS: wake, leases, ended; the jobs
-- ARGV: clock, parked_on, reason, the ids of the jobs
-- returns: the ids of those that were parked on it
local parked_on, reason, now = ARGV[2], ARGV[3], clock()
local unparked = {}
for i = 4, #KEYS do
  local job = read_job(KEYS[i], ARGV[i], 0)
  if job and job[1][PARKED_ON] == parked_on then
    local row = fill_row(job[1])
    leave_parked_set(job)
    row[PUBLISHED_AT], row[REASON] = '0', reason
    write_row(KEYS[i], row)
    set_wake_at(job, math.min(now, tonumber(row[EXPIRES_AT]) or now))
    unparked[#unparked + 1] = job.id
  else
    redis.call('ZREM', parked_set(parked_on), ARGV[i])
  end
end
return unparked
