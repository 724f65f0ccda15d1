-- name: blocks
-- out: id and body (JSON) of every block
select id, body from onejob.blocks order by id collate "C"
-- name: put_block
-- Write a block, unless one has its id.
-- in: :id :body (JSON)
insert into onejob.blocks (id, body) values (:id, :body) on conflict do nothing
-- name: delete_block
-- in: :id
delete from onejob.blocks where id = :id
-- name: unpark
-- Make jobs due that are parked on a pause, the first ones first.
-- in: :parked_on :reason :limit :due_channel :now
-- out: the ids
with {clock},
first as (
  select id from onejob.jobs
  where {is_parked}
  order by priority_rank desc, created_at, id limit cast(:limit as bigint)
  for no key update
)
update onejob.jobs as jobs set
  parked_on = null,
  wake_at = least(now, jobs.expires_at),
  published_at = null,
  reason = :reason
from first, clock
where jobs.id = first.id
returning jobs.id, {notify_workers}
