-- name: add_cost
#!lua flags=allow-oom
-- Compare and set the costs of a run, and add to the sums of today: what is spent once, what is saved for each duplicate
-- that has saved a run so far.
-- KEYS: job, duplicate_counts, the prefix of the sums of a day
-- ARGV: clock, job_id, token, sources (words), request_id, expected, costs, saved_by (words: outcomes of duplicates),
--       name_limit, lasts (seconds: how long sums are kept); task, label, name, unit and the three limbs of each amount
-- returns: "1" if the write was applied, also for a repeated request, or ""; the costs; the number of these duplicates
-- refusal: nil when the token is stale
local FIRST_AMOUNT = 11
local key, duplicate_counts, sums = unpack(KEYS)
local job_id, token, sources, request_id, expected, costs, saved_by, name_limit, lasts = unpack(ARGV, 2, 10)

local row = read_row(key)
if not row or row[TOKEN] ~= token or not contains(sources, row[STATE]) then
  return nil
elseif is_repeated(row[REQUESTS], request_id) then
  return { '1', row[COSTS] or '', '0' }
elseif (row[COSTS] or '') ~= expected then
  return { '', row[COSTS] or '', '0' }
end
local day, amounts, prevented = sums_of_today(sums), read_amounts(FIRST_AMOUNT), 0
for outcome in string.gmatch(saved_by, '%S+') do
  prevented = prevented + tonumber(redis.call('HGET', duplicate_counts, outcome .. ' ' .. job_id) or 0)
end
fill_row(row)
row[COSTS], row[REQUESTS] = costs, add_request(row[REQUESTS], request_id)
write_row(key, row)
for _, amount in ipairs(amounts) do
  local name = name_of_sum(day, amount, number(name_limit))
  add_to_sum(day, amount, name, 'spent', 1)
  add_to_sum(day, amount, name, 'saved', prevented)
end
redis.call('EXPIRE', day, lasts)
return { '1', costs, format_integer(prevented) }
-- name: add_saved
#!lua flags=allow-oom
-- Add to what is saved today.
-- KEYS: the prefix of the sums of a day
-- ARGV: clock, name_limit, lasts (seconds: how long sums are kept); task, label, name, unit and the three limbs of each amount
-- returns: nothing
local FIRST_AMOUNT = 4
local day, amounts = sums_of_today(KEYS[1]), read_amounts(FIRST_AMOUNT)
for _, amount in ipairs(amounts) do
  add_to_sum(day, amount, name_of_sum(day, amount, number(ARGV[2])), 'saved', 1)
end
redis.call('EXPIRE', day, ARGV[3])
return {}
