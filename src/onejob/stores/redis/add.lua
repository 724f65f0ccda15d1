#!lua flags=allow-oom
-- Add to running totals.
-- KEYS: metrics
-- ARGV: amounts (JSON array of names and amounts in turn, all texts)
-- returns: nothing
local amounts = cjson.decode(arg.amounts)
for i = 1, #amounts, 2 do
  redis.call('HINCRBYFLOAT', KEYS[1], amounts[i], amounts[i + 1])
end
