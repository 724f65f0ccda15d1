#!lua flags=allow-oom
-- Remove jobs with all that belongs to them; also what a lost row (evicted, deleted by hand) left behind.
-- KEYS: wake, jobs, following; then for each job: job, steps, history, followers
-- ARGV: job_ids (JSON array, in the order of the keys), sources (words)
-- returns: the ids of the jobs that were removed
-- refusal: a job in another state, or one that holds its identity, is left as it is
local wake, jobs, following = unpack(KEYS, 1, 3)
local removed = {}
for i, job_id in ipairs(cjson.decode(arg.job_ids)) do
  local key, steps, history, followers = unpack(KEYS, 4 * i, 4 * i + 3)
  local state, holds = unpack(redis.call('HMGET', key, 'state', 'holds'))
  if not state or (holds ~= '1' and has(arg.sources, state)) then
    redis.call('UNLINK', key, steps, history, followers)
    redis.call('ZREM', wake, job_id)
    redis.call('ZREM', jobs, job_id)
    redis.call('HDEL', following, job_id)
    if state then
      removed[#removed + 1] = job_id
    end
  end
end
return removed
