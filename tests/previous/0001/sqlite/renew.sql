-- Extend many leases.
-- in: :claims (JSON array of [job id, nonce]) :sources :now
-- out: id, claim and cancel of every job whose lease was extended
update jobs set lease_until = :now + lease, wake_at = :now + lease
where state in (select value from json_each(:sources))
  and (id, claim) in (select value ->> 0, value ->> 1 from json_each(:claims))
returning id, claim, cancel
