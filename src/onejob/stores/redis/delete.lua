#!lua flags=allow-oom
-- Remove jobs with all that belongs to them, remember what had come of them, and forget that of others; also remove what
-- a lost row (evicted, deleted by hand) left behind.
-- KEYS: wake, leases, jobs, following, tombstones, forgetting; then for each job: job, steps, history, followers, duplicates
-- ARGV: job_ids (JSON array, in the order of the keys), sources (words), spares, tombstone_for (seconds; 0 for none)
-- returns: the ids of the jobs that were removed
-- refusal: a job in another state, or one that holds its identity, is left as it is; with `spares` also one that an
--          idempotency key points to, and its alarm rings when the last key is forgotten
local wake, leases, jobs, following, tombstones, forgetting = unpack(KEYS, 1, 6)
local job_ids, tombstone_for = cjson.decode(arg.job_ids), number('tombstone_for')
local removed, now = {}, clock()

local function remember_end(job_id, state, finished_at)
  local till = text(now + tombstone_for)
  redis.call('HSET', tombstones, job_id, cjson.encode({ state, finished_at, text(now), till }))
  redis.call('ZADD', forgetting, till, job_id)
end

local old = redis.call('ZRANGEBYSCORE', forgetting, '-inf', text(now), 'LIMIT', 0, whole(2 * #job_ids))
if #old > 0 then
  redis.call('HDEL', tombstones, unpack(old))
  redis.call('ZREM', forgetting, unpack(old))
end
for i, job_id in ipairs(job_ids) do
  local key = KEYS[5 * i + 2]
  local state, holds_identity, key_retained_until, finished_at = unpack(
    redis.call('HMGET', key, 'state', 'holds_identity', 'key_retained_until', 'finished_at')
  )
  local goes = not state or (holds_identity ~= '1' and has(arg.sources, state))
  if goes and arg.skip_keyed == '1' and key_retained_until and tonumber(key_retained_until) > now then
    redis.call('ZADD', wake, key_retained_until, job_id)
  elseif goes then
    redis.call('UNLINK', unpack(KEYS, 5 * i + 2, 5 * i + 6))
    redis.call('ZREM', wake, job_id)
    redis.call('ZREM', leases, job_id)
    redis.call('ZREM', jobs, job_id)
    redis.call('HDEL', following, job_id)
    if state then
      removed[#removed + 1] = job_id
    end
    if finished_at and tombstone_for > 0 then
      remember_end(job_id, state, finished_at)
    end
  end
end
return removed
