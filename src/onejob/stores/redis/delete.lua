#!lua flags=allow-oom
-- Delete jobs with everything that belongs to them, insert their tombstones, and delete expired tombstones; also delete
-- everything that belongs to a lost row (evicted, deleted by hand).
-- KEYS: wake, leases, ended; jobs, the prefix of the sets of submitters, follows_ids, duplicate_counts, tombstones,
--       tombstone_expiry, the successor's job; for each job: job, steps, history, followers, duplicates, run_logs, successor; the sets of all states that have one
-- ARGV: clock, sources (words), skip_referenced, skip_needed, successor (the id of the job that answers the idempotency
--       keys from then on; "" for none), tombstone_for (seconds; 0 for none), outcomes (words: all that duplicates are
--       counted by), indexed (words: the states of these sets, the first one that of the last key); the ids of the jobs
-- returns: the ids of the deleted jobs
-- refusal: a job in another state, or a job that holds its identity, stays; with `skip_referenced` also a job that an
--          idempotency key or an unfinished follower points to. It becomes due when its last key expires, or when the
--          time since its end has doubled. With `skip_needed` such a job stays unchanged, and so does a job whose canvas
--          is still to be notified
local jobs, of_submitter, follows_ids, duplicate_counts, tombstones, tombstone_expiry, successor_key = unpack(KEYS, 4, 10)
local _, sources, skip_referenced, skip_needed, successor, tombstone_for, outcomes, indexed = unpack(ARGV, 1, 8)
local job_ids = { unpack(ARGV, 9) }
tombstone_for = number(tombstone_for)
local deleted, now = {}, clock()

local function insert_tombstone(job_id, state, finished_at)
  local expires_at = format_time(now + tombstone_for)
  redis.call('HSET', tombstones, job_id, cjson.encode({ state, finished_at, format_time(now), expires_at }))
  redis.call('ZADD', tombstone_expiry, expires_at, job_id)
end

-- Have the idempotency keys that name a deleted job name its successor, if the successor exists.
local function pass_on_keys(row, successor_of_job)
  redis.call('DEL', successor_of_job) -- of an earlier job with this id
  local kept_until = tonumber(row[KEY_RETAINED_UNTIL]) or 0
  local job = successor ~= '' and kept_until > now and read_job(successor_key, successor, 0)
  if job then
    local new = fill_row(job[1])
    new[KEY_RETAINED_UNTIL] = format_time(math.max(tonumber(new[KEY_RETAINED_UNTIL]) or 0, kept_until))
    write_row(successor_key, new)
    -- As the keys themselves: the TTL is longer, and a clock may be set back.
    local seconds = format_integer(math.ceil(math.min(kept_until - now, 2 ^ 31) + 3600))
    redis.call('SET', successor_of_job, successor, 'EX', seconds)
  end
end

local function count_fields(job_id)
  local fields = {}
  for outcome in string.gmatch(outcomes, '%S+') do
    fields[#fields + 1] = outcome .. ' ' .. job_id
  end
  return fields
end

-- Delete the entry of a job in the set of its state; of a lost row, whose state is unknown, in all.
local function delete_state_entry(job_id, row)
  local position = #KEYS
  for state in string.gmatch(indexed, '%S+') do
    if not row or row[STATE] == state then
      redis.call('ZREM', KEYS[position], job_id)
    end
    position = position - 1
  end
end

-- Until when a key, or else an unfinished follower, keeps an ended job from being purged; nil for not at all.
local function referenced_until(job, followers)
  local row = job[1]
  local time = tonumber(row[KEY_RETAINED_UNTIL]) or 0
  for follower in pairs(read_hash(followers)) do
    if redis.call('HGET', follows_ids, follower) == job.id then
      local since_end = now - tonumber(row[FINISHED_AT] or now)
      time = math.max(time, now + math.max(since_end, tonumber(row[LEASE])))
      break
    end
  end
  return time > now and time or nil
end

local limit = format_integer(2 * #job_ids)
local expired = redis.call('ZRANGEBYSCORE', tombstone_expiry, '-inf', format_time(now), 'LIMIT', 0, limit)
if #expired > 0 then
  redis.call('HDEL', tombstones, unpack(expired))
  redis.call('ZREM', tombstone_expiry, unpack(expired))
end
for i, job_id in ipairs(job_ids) do
  local first = 7 * i + 4
  local job = read_job(KEYS[first], job_id, 0)
  local row = job and job[1]
  local deletable = not job or (not row[HOLDS_IDENTITY] and contains(sources, row[STATE]))
  if deletable and job and skip_needed == '1' then
    deletable = not row[CANVAS_PENDING] and not referenced_until(job, KEYS[first + 3])
  end
  local referenced = deletable and job and skip_referenced == '1' and referenced_until(job, KEYS[first + 3])
  if referenced then
    set_wake_at(job, referenced)
  elseif deletable then
    redis.call('UNLINK', unpack(KEYS, first, first + 5))
    redis.call('ZREM', jobs, job_id)
    redis.call('HDEL', follows_ids, job_id)
    redis.call('HDEL', duplicate_counts, unpack(count_fields(job_id)))
    delete_state_entry(job_id, row)
  end
  if deletable and job and not referenced then
    redis.call('ZREM', wake_set(row), job_id)
    leave_parked_set(job)
    if row[LIMIT_KEYS] then
      give_room_back(job, now)
    end
    if row[SUBMITTER] then
      redis.call('ZREM', of_submitter .. row[SUBMITTER], job_id)
    end
    pass_on_keys(row, KEYS[first + 6])
    deleted[#deleted + 1] = job_id
    if row[FINISHED_AT] and tombstone_for > 0 then
      insert_tombstone(job_id, row[STATE], row[FINISHED_AT])
    end
  end
end
return deleted
