-- Keep a node's heartbeat.
-- in: :node :lasts (seconds) :now
insert into workers (name, seen_at, until) values (:node, :now, :now + :lasts)
on conflict do update set seen_at = excluded.seen_at, until = excluded.until
