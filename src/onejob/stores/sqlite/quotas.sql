-- name: delete_quotas
-- Delete some expired windows.
-- in: :now
delete from quotas where name in (select name from quotas where until <= :now order by until limit 10)
-- name: charge
-- Use a quota once, unless it is used up: one with the limit 0 always is. A window begins with its first use.
-- in: :name :limit :period (seconds) :now
-- out: when the window ends; nothing when the quota is used up
insert into quotas (name, used, until) select :name, 1, :now + :period where :limit > 0
on conflict (name) do update set
  used = iif(until > :now, used, 0) + 1, until = iif(until > :now, until, :now + :period)
where until <= :now or used < :limit
returning until
-- name: get_quota
-- in: :name
-- out: when the window ends
select until from quotas where name = :name
