#!lua flags=allow-oom
-- Add jobs to the sets of their submitters, which earlier versions did not keep.
-- KEYS: the prefix of the sets of submitters; the jobs
-- ARGV: clock; the ids
-- returns: how many jobs were not in the sets
local added = 0
for i = 2, #KEYS do
  local row = read_row(KEYS[i])
  if row and row[SUBMITTER] then
    added = added + redis.call('ZADD', KEYS[1] .. row[SUBMITTER], row[CREATED_AT], ARGV[i])
  end
end
return added
