-- name: blocks
-- out: id and body (JSON) of every block
select id, body from blocks order by id
-- name: put_block
-- Write a block, unless one has its id.
-- in: :id :body (JSON)
insert into blocks (id, body) values (:id, :body) on conflict do nothing
-- name: delete_block
-- in: :id
delete from blocks where id = :id
-- name: unpark
-- Make jobs due that are parked on a pause, the first ones first.
-- in: :parked_on :reason :limit :now
-- out: the ids
update jobs set
  parked_on = null,
  wake_at = min(:now, coalesce(expires_at, 9e999)),
  published_at = null,
  reason = :reason
where rowid in (
  select rowid from jobs
  where parked_on = :parked_on and parked_on <> '' and lease_until is null and finished_at is null
  order by priority_rank desc, created_at, id limit :limit
)
returning id
