-- Count one use of a name, unless so many were counted in the window that began with the first of them.
-- in: :name :nonce :limit :period (seconds) :now
-- refusal: nothing happens when none is left, or when this request was counted before
insert into quotas (name, used, until, requests) values (:name, 1, :now + :period, :nonce || ' ')
on conflict (name) do update set used = used + 1, requests = substr(:nonce || ' ' || requests, 1, 136)
where used < :limit and instr(' ' || requests, ' ' || :nonce || ' ') = 0
