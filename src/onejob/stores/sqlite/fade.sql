-- Remove the heartbeat that are over.
-- in: :now
delete from workers where until <= :now
