-- in: :identity
-- out: the job that holds the identity, or nothing
select jobs.* from onejob.jobs where identity = :identity and holds_identity
