#!lua flags=allow-oom
-- Extend many leases, and with them the room of jobs with limits. Such a lease is not extended after its end: another job
-- may have got the slot.
-- KEYS: leases, then one job per claim
-- ARGV: clock, sources (words); the id of the job and the nonce of each claim, in turn
-- returns: one value per claim: the job's `cancel`
-- refusal: "" for a claim that is no longer the job's, or a job that is not in the sources
local leases, sources, now = KEYS[1], ARGV[2], clock()
local cancels = {}
for i = 1, #KEYS - 1 do
  local key, job_id, nonce = KEYS[i + 1], ARGV[2 * i + 1], ARGV[2 * i + 2]
  local row = read_row(key)
  local is_current = row and row[CLAIM] == nonce and contains(sources, row[STATE])
  if is_current and not (row[LIMIT_KEYS] and tonumber(row[LEASE_UNTIL]) <= now) then
    row[LEASE_UNTIL] = format_time(now + tonumber(row[LEASE]))
    if row[LIMIT_KEYS] then
      renew_room({ row, id = job_id })
    end
    write_row(key, row)
    redis.call('ZADD', leases, row[LEASE_UNTIL], job_id)
    cancels[i] = row[CANCEL] or '0'
  else
    cancels[i] = ''
  end
end
return cancels
