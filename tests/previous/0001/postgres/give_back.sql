-- Take back one use of a name, in the window in which it was counted.
-- in: :name :nonce :until
-- refusal: nothing happens when that window is over, or when this request took one back before
update onejob.quotas set used = used - 1, requests = left(cast(:nonce as text) || ' ' || requests, 136)
where name = :name and until = cast(:until as float8) and used > 0
  and strpos(' ' || requests, ' ' || cast(:nonce as text) || ' ') = 0
