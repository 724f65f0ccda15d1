-- Take the jobs whose wake_at is due, and postpone it: first runs whose lease has expired, then the others.
-- in: :tasks (JSON array: those whose waiting jobs are taken) :expired_runs (0: not these) :limit :hold (seconds) :now
-- out: the jobs
with expired_runs as materialized (
  select id from jobs where :expired_runs and wake_at <= :now and lease_until is not null order by wake_at limit :limit
),
others as materialized (
  select jobs.id, jobs.wake_at from json_each(:tasks) as known join jobs on jobs.rowid in (
    select rowid from jobs
    where coalesce(publisher_task, task) = known.value and wake_at <= :now
      and lease_until is null and (finished_at is null or canvas_pending)
    order by wake_at
    limit :limit
  )
  union all
  select * from (
    select id, wake_at from jobs where wake_at <= :now and finished_at is not null and not canvas_pending
    order by wake_at
    limit :limit
  )
  order by wake_at
  limit :limit - (select count(*) from expired_runs)
)
update jobs set wake_at = :now + :hold
where id in (select id from expired_runs union all select id from others)
returning {job_columns}
