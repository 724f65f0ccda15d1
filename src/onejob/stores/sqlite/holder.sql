-- in: :identity
-- out: the job that holds the identity, or nothing
select * from jobs where identity = :identity and holds_identity
