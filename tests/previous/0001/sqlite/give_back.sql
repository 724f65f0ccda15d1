-- Take back one use of a name, in the window in which it was counted.
-- in: :name :nonce :until
-- refusal: nothing happens when that window is over, or when this request took one back before
update quotas set used = used - 1, requests = substr(:nonce || ' ' || requests, 1, 136)
where name = :name and until = :until and used > 0 and instr(' ' || requests, ' ' || :nonce || ' ') = 0
