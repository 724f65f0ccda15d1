#!lua flags=no-writes
-- Filter jobs without reading their large fields, except for the arguments if they are asked for.
-- KEYS: the jobs
-- ARGV: clock, the filters of the query that are set, by name (JSON)
-- returns: for each key the state of the job; "" for one that does not match or does not exist
local wanted = cjson.decode(ARGV[2])

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

-- The members of a list as the keys of a table; nil without a list.
local function set_of(list)
  local set = list and {}
  for _, each in ipairs(list or {}) do
    set[each] = true
  end
  return set
end

local states, tasks, reason = set_of(wanted.states), set_of(wanted.tasks), wanted.reason and string.lower(wanted.reason)
local found = {}
for i, key in ipairs(KEYS) do
  local row = read_row(key)
  local matches = row
    and (not states or states[row[STATE]])
    and (not tasks or tasks[row[TASK]])
    and (not wanted.task or wanted.task == row[TASK])
    and (not wanted.identity or wanted.identity == row[IDENTITY])
    and (not wanted.submitter or wanted.submitter == (row[SUBMITTER] or ''))
    and (not reason or string.find(string.lower(row[REASON] or ''), reason, 1, true))
    and (not wanted.queue or wanted.queue == queue_of(row[ROUTE] or ''))
    and (not wanted.node or wanted.node == (row[NODE] or ''))
    and (not wanted.unsettled or not row[FINISHED_AT] or row[CANVAS_PENDING])
    and (not wanted.parked_on or wanted.parked_on == row[PARKED_ON])
    and (not wanted.tag or has_tag(row, wanted.tag))
    and (not wanted.arguments or has_arguments(key, wanted.arguments))
  found[i] = matches and row[STATE] or ''
end
return found
