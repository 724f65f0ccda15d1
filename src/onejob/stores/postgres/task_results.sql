-- name: put_result
-- Store a result in place of an earlier result of its name, and delete some expired results.
-- in: :name :body :keep_for (seconds) :now
with {clock},
expired as (
  select name from onejob.task_results
  where until <= (select now from clock) and name <> :name order by until limit 2
  for update skip locked
),
deleted as (
  delete from onejob.task_results using expired where task_results.name = expired.name
)
insert into onejob.task_results (name, body, until)
select cast(:name as text), cast(:body as text), now + cast(:keep_for as float8) from clock
on conflict (name) do update set body = excluded.body, until = excluded.until
-- name: results
-- in: :names (array) :now
-- out: name and body of each result that is stored
with {clock}
select name, body from onejob.task_results, clock where name = any(cast(:names as text[])) and until > now
-- name: delete_result
-- in: :name
delete from onejob.task_results where name = :name
