#!lua flags=no-writes
-- Count jobs that wait for a run, and not for another job or the end of a pause, and jobs that run.
-- KEYS: the jobs
-- ARGV: clock, submitter: with a prefix '=', or '' for any; the tasks whose workers handle the jobs
-- returns: for each task, route and state, in turn: these, the number of its jobs, how many of them wait and are due, and
--          the earliest `run_at`
local submitter, now = ARGV[2], clock()
local handled, groups, found = {}, {}, {}
for i = 3, #ARGV do
  handled[ARGV[i]] = true
end
for _, key in ipairs(KEYS) do
  local row = read_row(key)
  if row and handled[row[PUBLISHER_TASK] or row[TASK]]
    and (row[LEASE_UNTIL] or not (row[FINISHED_AT] or row[FOLLOWS_ID] or row[PARKED_ON]))
    and (submitter == '' or submitter == '=' .. (row[SUBMITTER] or ''))
  then
    local name, run_at = table.concat({ row[STATE], row[TASK], row[ROUTE] or '' }, '\0'), run_at_of(row)
    local group = groups[name] or { row = row, count = 0, due = 0, oldest = run_at }
    group.count, group.oldest = group.count + 1, math.min(group.oldest, run_at)
    group.due = group.due + (not row[LEASE_UNTIL] and run_at <= now and 1 or 0)
    groups[name] = group
  end
end
for _, group in pairs(groups) do
  local row, numbers = group.row, { format_integer(group.count), format_integer(group.due), format_time(group.oldest) }
  for _, value in ipairs({ row[TASK], row[ROUTE] or '', row[STATE], unpack(numbers) }) do
    found[#found + 1] = value
  end
end
return found
