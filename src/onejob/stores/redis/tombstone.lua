#!lua flags=no-writes
-- Read what is remembered of a job that was deleted.
-- KEYS: job, tombstones
-- ARGV: job_id
-- returns: the tombstone as a JSON array: state, finished_at, purged_at, until
-- refusal: nil when there is none, when it is too old, or when there is a job of this id again
local key, tombstones = unpack(KEYS)
local tombstone = redis.call('HGET', tombstones, arg.job_id)
if not tombstone or redis.call('HGET', key, 'id') or tonumber(cjson.decode(tombstone)[4]) <= clock() then
  return nil
end
return tombstone
