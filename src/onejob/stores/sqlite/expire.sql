-- Take the identity from a completed job whose uniqueness window is over.
-- in: :identity :now
-- out: the id of that job, or nothing
update jobs set holds_identity = 0
where identity = :identity and holds_identity and identity_until <= :now
returning id
