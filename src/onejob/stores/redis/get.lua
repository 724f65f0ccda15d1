#!lua flags=no-writes
-- Read jobs with their alarms, as of one moment.
-- KEYS: wake, then the jobs
-- returns: one job per key, an empty one where there is none
local wake = KEYS[1]
local jobs = {}
for i = 2, #KEYS do
  jobs[i - 1] = row(read(KEYS[i], wake) or {})
end
return jobs
