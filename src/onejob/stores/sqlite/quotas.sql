-- name: expire_quota
-- Delete the window of a quota if it has expired, and a few other expired ones.
-- in: :name :now
delete from quotas where until <= :now and (
  name = :name or name in (select name from quotas where until <= :now order by until limit 10)
)
-- name: consume
-- Consume :amount of a quota; a negative amount refunds.
-- in: :name :nonce :limit :amount :period (seconds) :until (only in the window that ends then; null for any) :now
-- refusal: a use that would leave the range from 0 to the limit is not counted; a request is counted once
insert into quotas (name, used, until, requests)
values (:name, max(:amount, 0), :now + :period, iif(:until is null, :nonce || ' ', ''))
on conflict (name) do update set used = used + :amount, requests = substr(:nonce || ' ' || requests, 1, 136)
where used + :amount between 0 and max(:limit, used) and (:until is null or until = :until)
  and instr(' ' || requests, ' ' || :nonce || ' ') = 0
-- name: get_quota
-- in: :name :nonce
-- out: used, until, and whether this request is "counted" in that window
select instr(' ' || requests, ' ' || :nonce || ' ') > 0 as counted, used, until from quotas where name = :name
