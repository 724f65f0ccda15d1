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
-- name: postpone
#!lua flags=allow-oom
-- Set `wake_at` of jobs that wait for a run, or whose canvas waits.
-- KEYS: wake, leases, ended; the jobs
-- ARGV: clock, lost ("1": only published jobs that may run and are not parked, which a sweep has to publish again); id, wake_after (seconds) and
--       `wake_at` as it was seen ("": whatever it is) of each
-- returns: nothing
local now, lost = clock(), ARGV[2] == '1'
for i = 4, #KEYS do
  local job, wake_after, taken = read_job(KEYS[i], ARGV[3 * i - 9], 0), number(ARGV[3 * i - 8]), tonumber(ARGV[3 * i - 7])
  local row = job and job[1]
  local waits = row and not row[LEASE_UNTIL] and (not row[FINISHED_AT] or row[CANVAS_PENDING])
  local is_seen = waits and (not taken or math.abs((tonumber(read_wake_at(job)) or 0) - taken) < 0.001)
  if is_seen and not (lost and (row[PUBLISHED_AT] == '0' or row[PARKED_ON] or run_at_of(row) > now)) then
    if lost then
      fill_row(row)[PUBLISHED_AT] = '0'
      write_row(KEYS[i], row)
    end
    local expires_at = not row[FINISHED_AT] and tonumber(row[EXPIRES_AT]) or math.huge
    set_wake_at(job, math.min(now + wake_after, expires_at))
  end
end
return {}
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
