-- in: :identity
-- out: the job that waits for the identity, or nothing
select * from jobs where identity = :identity and queued_next
