-- Remove the signs of life that are over.
-- in: :now
delete from nodes where until <= :now
