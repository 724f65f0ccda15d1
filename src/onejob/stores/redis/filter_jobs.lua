#!lua flags=no-writes
-- Filter jobs without reading their large fields, except for the arguments if they are asked for.
-- KEYS: the jobs
-- ARGV: clock, states (words, '' for all), unsettled; with a prefix '=', or '' for any: task, tasks (JSON array),
--       identity, submitter, reason (a part of it), queue, node, arguments (a part of their JSON), tag
-- returns: for each key the state of the job; "" for one that does not match or does not exist
local states, unsettled = unpack(ARGV, 2, 3)

-- A filter without its prefix; nil for any.
local function filter(argument)
  return argument ~= '' and string.sub(argument, 2) or nil
end

-- The queue of a route, as `Route.decode` returns it.
local function queue_of(route)
  return string.sub(route, 1, 1) == '[' and cjson.decode(route)[3] or route
end

-- Whether the JSON of the arguments of a job has a text.
local function has_arguments(key, text)
  local payload = redis.call('LINDEX', key, PAYLOAD - 1)
  return string.find(payload, text, string.find(payload, '"args": ', 1, true) or 1, true)
end

-- Whether a job has a tag.
local function has_tag(row, tag)
  for each in string.gmatch(row[TAG_LINES] or '', '[^\n]+') do
    if each == tag then
      return true
    end
  end
  return false
end

local task, tasks, identity, submitter, reason, queue, node, arguments, tag =
  filter(ARGV[4]), filter(ARGV[5]), filter(ARGV[6]), filter(ARGV[7]), filter(ARGV[8]), filter(ARGV[9]),
  filter(ARGV[10]), filter(ARGV[11]), filter(ARGV[12])
local known, found = {}, {}
for _, name in ipairs(tasks and cjson.decode(tasks) or {}) do
  known[name] = true
end
reason = reason and string.lower(reason)
for i, key in ipairs(KEYS) do
  local row = read_row(key)
  local matches = row
    and (states == '' or contains(states, row[STATE]))
    and (not tasks or known[row[TASK]])
    and (not task or task == row[TASK])
    and (not identity or identity == row[IDENTITY])
    and (not submitter or submitter == (row[SUBMITTER] or ''))
    and (not reason or string.find(string.lower(row[REASON] or ''), reason, 1, true))
    and (not queue or queue == queue_of(row[ROUTE] or ''))
    and (not node or node == (row[NODE] or ''))
    and (unsettled == '' or not row[FINISHED_AT] or row[CANVAS_PENDING])
    and (not tag or has_tag(row, tag))
    and (not arguments or has_arguments(key, arguments))
  found[i] = matches and row[STATE] or ''
end
return found
