-- Forget the window of a name when it is over, and a few others that are.
-- in: :name :now
delete from quotas where until <= :now and (
  name = :name or name in (select name from quotas where until <= :now order by until limit 10)
)
