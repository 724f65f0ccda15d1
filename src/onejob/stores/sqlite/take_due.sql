-- Take the jobs whose alarm has rung, and put their alarm off: first runs whose lease is over, then the others.
-- in: :limit :hold (seconds) :now
-- out: the jobs
with lost as materialized (
  select id from jobs where wake_at <= :now and lease_until is not null order by wake_at limit :limit
),
others as materialized (
  select id from jobs where wake_at <= :now and lease_until is null
  order by wake_at
  limit :limit - (select count(*) from lost)
)
update jobs set wake_at = :now + :hold
where id in (select id from lost union all select id from others)
returning *
