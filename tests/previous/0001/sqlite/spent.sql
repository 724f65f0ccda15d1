-- Tell how often a name was used in its window, and whether a request of late was counted there.
-- in: :name :nonce
-- out: counted used until
select instr(' ' || requests, ' ' || :nonce || ' ') > 0 as counted, used, until from quotas where name = :name
