-- Count one use of a name, unless so many were counted in the window that began with the first of them; and forget some
-- windows that are over. A use that is not counted writes the row, too: it may have begun after this statement did.
-- in: :name :nonce :limit :period (seconds) :now
-- out: whether the use is "counted", also when it was by this request before; how many were, until when, and how many
--      seconds are left until then
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
),
over as (
  select quotas.name from onejob.quotas, clock
  where until <= now and quotas.name <> :name order by until limit 10
  for update of quotas skip locked
),
forgotten as (
  delete from onejob.quotas using over where quotas.name = over.name
)
insert into onejob.quotas as quotas (name, used, until, requests)
select :name, 1, now + cast(:period as float8), cast(:nonce as text) || ' ' from clock
on conflict (name) do update set (used, until, requests) = (
  select
    case when ended then 1 when counts then quotas.used + 1 else quotas.used end,
    case when ended then excluded.until else quotas.until end,
    case
      when ended then excluded.requests
      when counts then left(excluded.requests || quotas.requests, 136)
      else quotas.requests
    end
  from (
    select
      quotas.until <= now as ended,
      quotas.used < cast(:limit as bigint)
        and strpos(' ' || quotas.requests, ' ' || excluded.requests) = 0 as counts
    from clock
  ) as window_of_it
)
returning
  strpos(' ' || quotas.requests, ' ' || cast(:nonce as text) || ' ') > 0 as counted, used, until,
  until - (select now from clock) as seconds
