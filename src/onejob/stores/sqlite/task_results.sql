-- name: delete_results
-- Delete some results that have expired.
-- in: :now
delete from task_results where name in (
  select name from task_results where until <= :now order by until limit 2
)
-- name: put_result
-- in: :name :body :keep_for (seconds) :now
insert into task_results (name, body, until) values (:name, :body, :now + :keep_for)
on conflict (name) do update set body = excluded.body, until = excluded.until
-- name: results
-- in: :names (JSON: an array) :now
-- out: name and body of each result that is stored
select name, body from task_results where until > :now and name in (select value from json_each(:names))
-- name: delete_result
-- in: :name
delete from task_results where name = :name
