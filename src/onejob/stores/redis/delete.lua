#!lua flags=allow-oom
-- Delete jobs with everything that belongs to them, insert their tombstones, and delete expired tombstones; also delete
-- what belongs to a lost row (evicted, deleted by hand).
-- KEYS: wake, leases, jobs, follows_ids, duplicate_counts, tombstones, tombstone_expiry; for each job: job, steps,
--       history, followers, duplicates
-- ARGV: job_ids (JSON array, in the order of the keys), sources (words), skip_keyed, tombstone_for (seconds; 0 for
--       none), outcomes (words: all that duplicates are counted by)
-- returns: the ids of the deleted jobs
-- refusal: a job in another state, or one that holds its identity, stays; with `skip_keyed` also one that an
--          idempotency key points to, and it becomes due when its last key expires
local wake, leases, jobs, follows_ids, duplicate_counts, tombstones, tombstone_expiry = unpack(KEYS, 1, 7)
local job_ids, tombstone_for = cjson.decode(arg.job_ids), number('tombstone_for')
local deleted, now = {}, clock()

local function insert_tombstone(job_id, state, finished_at)
  local expires_at = format_time(now + tombstone_for)
  redis.call('HSET', tombstones, job_id, cjson.encode({ state, finished_at, format_time(now), expires_at }))
  redis.call('ZADD', tombstone_expiry, expires_at, job_id)
end

local function count_fields(job_id)
  local fields = {}
  for outcome in string.gmatch(arg.outcomes, '%S+') do
    fields[#fields + 1] = outcome .. ' ' .. job_id
  end
  return fields
end

local limit = format_integer(2 * #job_ids)
local expired = redis.call('ZRANGEBYSCORE', tombstone_expiry, '-inf', format_time(now), 'LIMIT', 0, limit)
if #expired > 0 then
  redis.call('HDEL', tombstones, unpack(expired))
  redis.call('ZREM', tombstone_expiry, unpack(expired))
end
for i, job_id in ipairs(job_ids) do
  local key = KEYS[5 * i + 3]
  local state, holds_identity, key_retained_until, finished_at = unpack(
    redis.call('HMGET', key, 'state', 'holds_identity', 'key_retained_until', 'finished_at')
  )
  local deletable = not state or (holds_identity ~= '1' and contains(arg.sources, state))
  if deletable and arg.skip_keyed == '1' and key_retained_until and tonumber(key_retained_until) > now then
    redis.call('ZADD', wake, key_retained_until, job_id)
  elseif deletable then
    redis.call('UNLINK', unpack(KEYS, 5 * i + 3, 5 * i + 7))
    redis.call('ZREM', wake, job_id)
    redis.call('ZREM', leases, job_id)
    redis.call('ZREM', jobs, job_id)
    redis.call('HDEL', follows_ids, job_id)
    redis.call('HDEL', duplicate_counts, unpack(count_fields(job_id)))
    if state then
      deleted[#deleted + 1] = job_id
    end
    if finished_at and tombstone_for > 0 then
      insert_tombstone(job_id, state, finished_at)
    end
  end
end
return deleted
