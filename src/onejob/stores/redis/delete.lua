#!lua flags=allow-oom
-- Remove jobs with all that belongs to them; also what a lost row (evicted, deleted by hand) left behind.
-- KEYS: wake, jobs, following; then for each job: job, steps, history, followers, receipts
-- ARGV: job_ids (JSON array, in the order of the keys), sources (words), spares
-- returns: the ids of the jobs that were removed
-- refusal: a job in another state, or one that holds its identity, is left as it is; with `spares` also one that an
--          idempotency key points to, and its alarm rings when the last key is forgotten
local wake, jobs, following = unpack(KEYS, 1, 3)
local removed, now = {}, moment()
for i, job_id in ipairs(cjson.decode(arg.job_ids)) do
  local key = KEYS[5 * i - 1]
  local state, holds, kept_until = unpack(redis.call('HMGET', key, 'state', 'holds', 'kept_until'))
  local goes = not state or (holds ~= '1' and has(arg.sources, state))
  if goes and arg.spares == '1' and kept_until and tonumber(kept_until) > now then
    redis.call('ZADD', wake, kept_until, job_id)
  elseif goes then
    redis.call('UNLINK', unpack(KEYS, 5 * i - 1, 5 * i + 3))
    redis.call('ZREM', wake, job_id)
    redis.call('ZREM', jobs, job_id)
    redis.call('HDEL', following, job_id)
    if state then
      removed[#removed + 1] = job_id
    end
  end
end
return removed
