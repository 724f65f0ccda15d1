-- Take the jobs whose wake_at is due, and postpone it: first runs whose lease has expired, then the others.
-- in: :limit :hold (seconds) :now
-- out: the jobs
with expired_runs as materialized (
  select id from jobs where wake_at <= :now and lease_until is not null order by wake_at limit :limit
),
others as materialized (
  select id from jobs where wake_at <= :now and lease_until is null
  order by wake_at
  limit :limit - (select count(*) from expired_runs)
)
update jobs set wake_at = :now + :hold
where id in (select id from expired_runs union all select id from others)
returning *
