-- Take the jobs whose alarm has rung, and put their alarm off.
-- in: :limit :hold (seconds) :now
-- out: the jobs
update jobs set wake_at = :now + :hold
where id in (select id from jobs where wake_at <= :now order by wake_at limit :limit)
returning *
