-- name: quotas
-- The quotas of the submission, whose rows `lock_quotas` has locked, and the first quota that is used up, as JSON: its
-- number, when its window ends, and in how many seconds. A quota with the limit 0 is always used up.
-- in: :charges (JSON: an array of objects with the number, the name, the limit and the period of each)
charges as (
  select * from json_to_recordset(cast(:charges as json)) as charges (
    number integer, name text, max_used bigint, period float8
  )
),
exceeded as (
  select json_build_array(number, ends, ends - now)::text as quota
  from onejob.quotas join charges using (name), clock,
    lateral (select case when max_used = 0 then now + period else until end as ends) as windows
  where max_used = 0 or (until > now and used >= max_used)
  order by number limit 1
)
-- name: charge
-- Use each of the quotas once, under a condition on what the statement has written, which follows.
update onejob.quotas as quotas set
    used = case when quotas.until > now then quotas.used else 0 end + 1,
    until = case when quotas.until > now then quotas.until else now + charges.period end
  from charges, clock
  where quotas.name = charges.name
