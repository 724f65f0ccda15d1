-- Count :amount uses of a name, or give them back when it is negative; and delete some windows that are over. A request that
-- is refused writes the row, too: it may have begun after this statement did.
-- in: :name :nonce :limit :amount :period (seconds) :until (only in the window that ends then; null for any)
-- out: whether this request was "counted", also before; how many uses were, until when, and how many seconds are left
-- refusal: the count stays within 0 and the limit, and a request counts once
with {clock},
stale as (
  select quotas.name from onejob.quotas, clock
  where quotas.until <= now and quotas.name <> :name order by quotas.until limit 10
  for update of quotas skip locked
),
removed as (
  delete from onejob.quotas using stale where quotas.name = stale.name
)
insert into onejob.quotas as quotas (name, used, until, requests)
select
  :name, greatest(cast(:amount as bigint), 0), now + cast(:period as float8),
  case when cast(:until as float8) is null then cast(:nonce as text) || ' ' else '' end
from clock
on conflict (name) do update set (used, until, requests) = (
  select
    case when ended then excluded.used when counts then quotas.used + cast(:amount as bigint) else quotas.used end,
    case when ended then excluded.until else quotas.until end,
    case
      when ended then excluded.requests
      when counts then left(cast(:nonce as text) || ' ' || quotas.requests, 136)
      else quotas.requests
    end
  from (
    select
      quotas.until <= now and cast(:until as float8) is null as ended,
      quotas.used + cast(:amount as bigint) between 0 and greatest(cast(:limit as bigint), quotas.used)
        and coalesce(quotas.until = cast(:until as float8), true)
        and strpos(' ' || quotas.requests, ' ' || cast(:nonce as text) || ' ') = 0 as counts
    from clock
  ) as it
)
returning
  strpos(' ' || quotas.requests, ' ' || cast(:nonce as text) || ' ') > 0 as counted, used, until,
  until - (select now from clock) as seconds
