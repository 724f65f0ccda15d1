-- name: report
#!lua flags=allow-oom
-- Store a run's progress.
-- KEYS: job
-- ARGV: clock, token, sources (words), progress
-- returns: the job's `cancel`
-- refusal: nil when the token is stale
local key, row = KEYS[1], read_row(KEYS[1])
if not row or row[TOKEN] ~= ARGV[2] or not contains(ARGV[3], row[STATE]) then
  return nil
end
write_part({ key = key }, PROGRESS, ARGV[4])
return row[CANCEL] or '0'
-- name: keep_step
#!lua flags=allow-oom
-- Memoise a step; an earlier value wins.
-- KEYS: job, steps
-- ARGV: clock, token, sources (words), name, value
-- returns: the stored value
-- refusal: nil when the token is stale
local steps, row = KEYS[2], read_row(KEYS[1])
if not row or row[TOKEN] ~= ARGV[2] or not contains(ARGV[3], row[STATE]) then
  return nil
end
redis.call('HSETNX', steps, ARGV[4], ARGV[5])
return redis.call('HGET', steps, ARGV[4])
