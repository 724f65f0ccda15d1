-- name: schedules
-- out: name, nonce and state (JSON) of every schedule
select name, nonce, state from onejob.schedules order by name collate "C"
-- name: put_schedule
-- Compare and set: the stored nonce must be the expected one, or the new one, which a repeated call finds.
-- in: :name :nonce :state (JSON) :expected (a nonce; empty: no schedule has this name)
-- out: a row if it was written
insert into onejob.schedules as schedules (name, nonce, state)
select cast(:name as text), cast(:nonce as text), cast(:state as text)
where cast(:expected as text) = '' or exists (
  select from onejob.schedules where name = :name and nonce in (:expected, :nonce)
)
on conflict (name) do update set nonce = excluded.nonce, state = excluded.state
where schedules.nonce in (:expected, excluded.nonce)
returning name
-- name: delete_schedule
-- in: :name :expected (a nonce)
delete from onejob.schedules where name = :name and nonce = :expected
