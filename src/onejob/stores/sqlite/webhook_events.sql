-- name: delete_events
-- Delete some events that are no longer needed.
-- in: :now
delete from webhook_events where id in (
  select id from webhook_events where until <= :now order by until limit 2
)
-- name: keep_event
-- Store an event, unless it is stored, and extend the time for which it is needed.
-- in: :id :body (null: only extend) :keep_for (seconds) :now
insert into webhook_events (id, body, until) select :id, :body, :now + :keep_for where :body is not null
on conflict (id) do update set
  body = iif(until > :now, body, excluded.body), until = max(until, excluded.until)
-- name: extend_event
-- in: :id :keep_for (seconds) :now
-- out: the body
update webhook_events set until = max(until, :now + :keep_for) where id = :id and until > :now
returning body
