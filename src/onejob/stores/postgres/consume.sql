-- Consume :amount of a quota (a negative amount refunds), and delete some expired windows. A refused request writes the
-- row, too: the row's window may have begun after this statement did.
-- in: :name :nonce :limit :amount :period (seconds) :until (only in the window that ends then; null for any)
-- out: whether this request is "counted" (also when it is repeated), the uses, when the window ends, and in how many
--      seconds
-- refusal: a use that would leave the range from 0 to the limit is not counted; a request is counted once
with {clock},
expired as (
  select quotas.name from onejob.quotas, clock
  where quotas.until <= now and quotas.name <> :name order by quotas.until limit 10
  for update of quotas skip locked
),
deleted as (
  delete from onejob.quotas using expired where quotas.name = expired.name
)
insert into onejob.quotas as quotas (name, used, until, requests)
select
  :name, greatest(cast(:amount as bigint), 0), now + cast(:period as float8),
  case when cast(:until as float8) is null then cast(:nonce as text) || ' ' else '' end
from clock
on conflict (name) do update set (used, until, requests) = (
  select
    case when ended then excluded.used when accepted then quotas.used + cast(:amount as bigint) else quotas.used end,
    case when ended then excluded.until else quotas.until end,
    case
      when ended then excluded.requests
      when accepted then left(cast(:nonce as text) || ' ' || quotas.requests, 136)
      else quotas.requests
    end
  from (
    select
      quotas.until <= now and cast(:until as float8) is null as ended,
      quotas.used + cast(:amount as bigint) between 0 and greatest(cast(:limit as bigint), quotas.used)
        and coalesce(quotas.until = cast(:until as float8), true)
        and strpos(' ' || quotas.requests, ' ' || cast(:nonce as text) || ' ') = 0 as accepted
    from clock
  ) as state
)
returning
  strpos(' ' || quotas.requests, ' ' || cast(:nonce as text) || ' ') > 0 as counted, used, until,
  until - (select now from clock) as seconds
