#!lua
-- Count a duplicate on the job that holds the identity. When the duplicate must come to an end under its own id, write
-- its row, too: it sleeps until its leader ends.
-- KEYS: identity, the holder's job, history and followers, the duplicate's job and history, wake, jobs, following
-- ARGV: holder (its id), the fields of the submission, receipt_limit, history_limit
-- returns: "attached", the holder and, when the duplicate follows it, the duplicate's row
-- refusal: "own" and the row that has this id already; "moved" when the holder no longer holds the identity
local identity, holder_key, holder_history, followers, key, history, wake, jobs, following = unpack(KEYS)

local own = read(key, wake)
if own then
  return { 'own', row(own) }
end
if redis.call('GET', identity) ~= arg.holder then
  return { 'moved' }
end
local holder = read(holder_key, wake)
if not holder or holder.holds ~= '1' then
  redis.call('DEL', identity) -- the row was lost (evicted, deleted by hand): nothing else would free the identity
  return { 'moved' }
end

local now = moment()
local duplicates = tonumber(holder.duplicates) + 1
write(holder_key, holder, { duplicates = whole(duplicates) })
if duplicates <= tonumber(arg.receipt_limit) then
  note(holder_history, holder, now, 'attach', arg.door)
end
if arg.follows ~= '1' then
  return { 'attached', row(holder) }
end

local job, fields = {}, fresh(now)
fields.holds, fields.leader, fields.run_at = '0', arg.holder, text(now)
fields.reason = 'follows ' .. arg.holder
write(key, job, fields)
redis.call('ZADD', jobs, job.created_at, arg.id)
redis.call('SADD', followers, arg.id)
redis.call('HSET', following, arg.id, arg.holder)
note(history, job, now, 'follow', fields.reason)
return { 'attached', row(holder), row(job) }
