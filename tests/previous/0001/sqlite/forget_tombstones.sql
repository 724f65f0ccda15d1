-- Forget old tombstones.
-- in: :limit :now
delete from tombstones where id in (select id from tombstones where until <= :now order by until limit :limit)
