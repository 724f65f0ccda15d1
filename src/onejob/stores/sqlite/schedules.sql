-- name: schedules
-- out: name, nonce and state (JSON) of every schedule
select name, nonce, state from schedules order by name
-- name: put_schedule
-- Compare and set: the stored nonce must be the expected one, or the new one, which a repeated call finds.
-- in: :name :nonce :state (JSON) :expected (a nonce; empty: no schedule has this name)
-- out: a row if it was written
insert into schedules (name, nonce, state)
select :name, :nonce, :state
where :expected = '' or exists (select 1 from schedules where name = :name and nonce in (:expected, :nonce))
on conflict (name) do update set nonce = excluded.nonce, state = excluded.state
where schedules.nonce in (:expected, excluded.nonce)
returning name
-- name: delete_schedule
-- in: :name :expected (a nonce)
delete from schedules where name = :name and nonce = :expected
