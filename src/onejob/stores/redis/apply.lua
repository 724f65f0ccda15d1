#!lua flags=allow-oom
-- Compare and set: one change of one job. The end of a job makes its followers due, and gives its identity to the job
-- that is queued next, and is signaled. A reopened job takes its identity, unless it rejoins the job that it follows. A message is pushed if the job waits for a run and is due.
-- KEYS: wake, leases, ended; job, identity, next, history, followers, follows_ids, steps; the broker's list, if the
--       change has a message; the sets of `indexed`
-- ARGV: clock, job_id, identity, request_id, event ('' if the row tells it), sources (words), target, token, seen_run_at, lapsed, overdue, unnotified, ends,
--       keeps_identity, identity_for, identity_until, reopens ("1", or "rejoins"), forgets_steps, wake_after, run_in, detail, message, indexed (see
--       `move_between_states`); then positions and new values in turn (a negative position: an element after the row; `published_at`
--       is "now" or "0")
-- returns: "applied", the job, whether the message was pushed ("1") and jobs may wait for room that was given back ("w"),
--          also for a repeated request; after an end also
--          the id of the job that has the identity now, whose row `promote` updates if it was queued next
-- refusal: "refused" and the job when a condition does not hold, and "" and the id of the job that holds the identity if
--          the identity is not free; "gone" when the job does not exist
local FIRST_VALUE = 24
local key, identity, next_key, history, followers, follows_ids, steps, destination = unpack(KEYS, 4)
local _, job_id, job_identity, request_id, event, sources, target, token, seen_run_at, lapsed, overdue, unnotified, ends,
  keeps_identity, identity_for, identity_until, reopens, forgets_steps, wake_after, run_in, detail, message, indexed = unpack(ARGV)
ends = ends == '1'
local takes_identity, rejoins = reopens == '1', reopens == 'rejoins'
reopens = takes_identity or rejoins

local job = read_job(key, job_id)
if not job then
  return { 'gone' }
end
local row = job[1]
if is_repeated(row[REQUESTS], request_id) or is_repeated(row[REQUESTS], request_id .. '+') then
  local has_pushed = is_repeated(row[REQUESTS], request_id .. '+') and '1w' or 'w'
  return { 'applied', reply(job), has_pushed, ends and redis.call('GET', identity) }
end
assert(row[IDENTITY] == job_identity, 'the change names another identity than the job')

local now = clock()
local lease_until, expires_at, queued_next = tonumber(row[LEASE_UNTIL]), tonumber(row[EXPIRES_AT]), row[QUEUED_NEXT]
local releases = not reopens and (keeps_identity == '' or (queued_next and ends))
local holder, next_id = false, false
if ends or reopens or releases then
  holder, next_id = unpack(redis.call('MGET', identity, next_key))
end
if not contains(sources, row[STATE])
  or (token ~= '' and token ~= (row[TOKEN] or '0'))
  or (seen_run_at ~= '' and math.abs(run_at_of(row) - tonumber(seen_run_at)) >= 0.001)
  or (lapsed == '1' and not (lease_until and lease_until <= now))
  or (overdue == '1' and not (expires_at and expires_at <= now))
  or (unnotified == '1' and not row[CANVAS_PENDING])
then
  return { 'refused', reply(job) }
elseif takes_identity and holder and not (holder == job_id and queued_next) then
  return { 'refused', reply(job), '', holder }
end

wake_after, run_in = number(wake_after), number(run_in)
identity_for, identity_until = number(identity_for), number(identity_until)
local previous_set, previous_state = wake_set(row), row[STATE]
local previous_wake_at = not wake_after and tonumber(read_wake_at(job) or now)
fill_row(row)
local is_waited_for = row[LIMIT_KEYS] and target ~= '' and give_room_back(job, now)
local has_followed = queued_next or row[FOLLOWS_ID]
if reopens then
  row[FINISHED_AT] = false
  write_part(job, RESULT, '')
  write_part(job, ERROR, '')
end
if takes_identity then
  row[HOLDS_IDENTITY], row[FOLLOWS_ID] = '1', false
  redis.call('SET', identity, job_id)
end
if forgets_steps == '1' then
  redis.call('DEL', steps)
end
for i = FIRST_VALUE, #ARGV, 2 do
  local position, value = tonumber(ARGV[i]), ARGV[i + 1]
  if position < 0 then
    write_part(job, 1 - position, value)
  else
    if position == PARKED_ON then
      leave_parked_set(job)
      if row[LIMIT_KEYS] and value ~= '' then
        is_waited_for = give_room_back(job, now)
      end
    end
    row[position] = value ~= '' and value
  end
end
if row[PUBLISHED_AT] == 'now' then
  row[PUBLISHED_AT] = format_time(now)
end
if target ~= '' then
  row[STATE], row[LEASE_UNTIL] = target, false
end
if identity_until or identity_for then
  row[IDENTITY_UNTIL] = format_time(identity_until or now + identity_for)
end
if run_in then
  row[RUN_AT] = format_time(now + run_in)
end
if ends then
  row[FINISHED_AT] = format_time(now)
end
if queued_next and (ends or reopens) then
  row[QUEUED_NEXT] = false
  row[FOLLOWS_ID] = rejoins and row[FOLLOWS_ID]
  if next_id == job_id then
    redis.call('DEL', next_key)
    next_id = false
  end
end
if releases then
  row[HOLDS_IDENTITY] = false
end
local waits = not (row[FINISHED_AT] or row[LEASE_UNTIL] or row[QUEUED_NEXT])
local pushed = message ~= '' and waits and run_at_of(row) <= now and push(destination, message)
enter_parked_set(job)
row[REQUESTS] = add_request(row[REQUESTS], pushed and request_id .. '+' or request_id)
write_row(key, row)
local wake_at = wake_after and now + wake_after or previous_wake_at
if wake_after and not row[FINISHED_AT] then
  wake_at = math.min(wake_at, expires_at or wake_at)
end
set_wake_at(job, wake_at, previous_set)
move_between_states(indexed, job, previous_state)
if event ~= '' then
  append_history(history, row, format_time(now), event, detail)
end
releases = releases and holder == job_id
local is_free, holder_id = releases or not (holder or reopens), nil
if rejoins and row[FOLLOWS_ID] then
  redis.call('HSET', follows_ids, job_id, row[FOLLOWS_ID])
elseif (ends or reopens) and has_followed then
  redis.call('HDEL', follows_ids, job_id)
end
if ends then
  signal('end', job_id)
  if row[FOLLOWED] then
    wake_all_followers(followers, follows_ids, job_id, now)
    signal('due', '')
  end
  holder_id = is_free and hand_over_identity(identity, next_key, next_id, followers, follows_ids, job_id, now)
elseif releases then
  redis.call('DEL', identity)
end
return { 'applied', reply(job), (pushed and '1' or '') .. (is_waited_for and 'w' or ''), holder_id }
