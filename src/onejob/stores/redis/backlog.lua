#!lua flags=no-writes
-- Count jobs that wait for a run, and not for another job.
-- KEYS: the jobs
-- ARGV: clock, submitter: with a prefix '=', or '' for any
-- returns: for each task, route and state, in turn: these, the number of its jobs, and the earliest `run_at`
local submitter = ARGV[2]
local groups, found = {}, {}
for _, key in ipairs(KEYS) do
  local row = read_row(key)
  if row and not (row[FINISHED_AT] or row[LEASE_UNTIL] or row[FOLLOWS_ID])
    and (submitter == '' or submitter == '=' .. (row[SUBMITTER] or ''))
  then
    local name = table.concat({ row[STATE], row[TASK], row[ROUTE] or '' }, '\0')
    local group = groups[name] or { row = row, count = 0, oldest = run_at_of(row) }
    group.count, group.oldest = group.count + 1, math.min(group.oldest, run_at_of(row))
    groups[name] = group
  end
end
for _, group in pairs(groups) do
  local row = group.row
  for _, value in ipairs({ row[TASK], row[ROUTE] or '', row[STATE], format_integer(group.count), format_time(group.oldest) }) do
    found[#found + 1] = value
  end
end
return found
