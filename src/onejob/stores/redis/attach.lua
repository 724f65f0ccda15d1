#!lua
-- Count a duplicate on the job that holds the identity. When the duplicate must come to an end under its own id, write
-- its row, too: it sleeps until its leader ends.
-- KEYS: identity, the holder's job, history and followers, the duplicate's job and history, wake, jobs, following
-- ARGV: holder (its id), the fields of the submission, receipt_limit, history_limit, window_over
-- returns: "attached", the holder and, when the duplicate follows it, the duplicate's row
-- refusal: "own" and the row that has this id already; "moved" when the holder no longer holds the identity, also
--          because its uniqueness window is over: then it gives it up here
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
if holder.identity_until and tonumber(holder.identity_until) <= now then
  redis.call('DEL', identity)
  write(holder_key, holder, { holds = '0' })
  note(holder_history, holder, now, 'free', arg.window_over)
  return { 'moved' }
end
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
if holder.finished_at then
  alarm(wake, arg.id, job, now)
end
note(history, job, now, 'follow', fields.reason)
return { 'attached', row(holder), row(job) }
