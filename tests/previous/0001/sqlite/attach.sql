-- Count a duplicate on the job that holds the identity.
-- in: :identity
-- out: that job
update jobs set duplicates = duplicates + 1
where identity = :identity and holds
returning *
