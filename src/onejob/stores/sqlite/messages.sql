-- name: put_messages
-- Write a copy of each message to each queue that its exchange and routing key lead to.
-- in: :messages (JSON: an array of objects) :now
-- out: the queues that have got a copy
with given as materialized (
  select key as position, value ->> 'id' as id, value ->> 'exchange' as exchange, value ->> 'routing_key' as routing_key,
    value ->> 'priority' as priority, value ->> 'body' as body, value ->> 'expires_in' as expires_in
  from json_each(:messages)
),
copies as (
  select given.*, routing_key as queue from given where exchange = ''
  union all
  select given.*, bindings.queue from given join message_bindings as bindings using (exchange)
  where exchange <> '' and (
    given.routing_key = bindings.routing_key
    or (bindings.pattern is not null and given.routing_key regexp bindings.pattern)
  )
)
insert into messages (message_id, queue, priority, body, expires_at)
select copies.id, copies.queue, copies.priority, copies.body,
  :now + min(coalesce(expires_in, message_ttl), coalesce(message_ttl, expires_in))
from copies left join message_queues as queues on queues.name = copies.queue
where queues.until is null or queues.until > :now
order by position
on conflict (message_id, queue) do nothing
returning queue
-- name: find_ready
-- in: :queues (JSON array) :limit :now
-- out: the ids of the first copies that nobody has taken
select messages.id from json_each(:queues) as known join messages on messages.id in (
  select id from messages
  where queue = known.value and taken_until is null and (expires_at is null or expires_at > :now)
  order by priority desc, id
  limit :limit
)
order by priority desc, messages.id
limit :limit
-- name: take_messages
-- Give copies to a consumer.
-- in: :ids (JSON array) :consumer :hold (seconds) :now
-- out: the copies
update messages set consumer = :consumer, taken_until = :now + :hold
where id in (select value from json_each(:ids))
returning id, queue, body, redelivered, priority
-- name: receive_messages
-- Delete and return copies: they need no acknowledgement.
-- in: :ids (JSON array)
-- out: the copies
delete from messages where id in (select value from json_each(:ids)) returning id, queue, body, redelivered, priority
-- name: delete_messages
-- in: :ids (JSON array) :consumer
delete from messages where id in (select value from json_each(:ids)) and consumer = :consumer
-- name: release_messages
-- in: :ids (JSON array) :consumer
update messages set consumer = '', taken_until = null, redelivered = 1
where id in (select value from json_each(:ids)) and consumer = :consumer
-- name: renew_messages
-- Extend the deadlines of a consumer's copies.
-- in: :ids (JSON array) :consumer :hold (seconds) :now
update messages set taken_until = :now + :hold
where id in (select value from json_each(:ids)) and consumer = :consumer
-- name: renew_queues
-- Extend the lives of the temporary queues from which a consumer consumes.
-- in: :queues (JSON array) :hold (seconds) :now
update message_queues set until = :now + max(expires_after, :hold)
where name in (select value from json_each(:queues)) and until is not null
-- name: release_abandoned
-- Return the copies of dead consumers to their queues.
-- in: :now
update messages set consumer = '', taken_until = null, redelivered = 1 where taken_until <= :now
-- name: delete_expired_messages
-- in: :now
delete from messages where taken_until is null and expires_at <= :now
-- name: purge_expired_queues
-- Delete the copies in the temporary queues that have no consumer.
-- in: :now
delete from messages
where taken_until is null and queue in (select name from message_queues where until <= :now)
-- name: unbind_forgotten_queues
-- in: :forgotten_after (seconds) :now
delete from message_bindings
where queue in (select name from message_queues where until <= :now - :forgotten_after)
-- name: delete_forgotten_queues
-- Delete the temporary queues that had no consumer for so long: a suspended consumer can go on with its queue before.
-- in: :forgotten_after (seconds) :now
delete from message_queues where until <= :now - :forgotten_after
-- name: declare_queue
-- in: :name :expires_after (seconds, null: for ever) :message_ttl (seconds, or null) :now
insert into message_queues (name, expires_after, until, message_ttl)
values (:name, :expires_after, :now + :expires_after, :message_ttl)
on conflict (name) do update set
  expires_after = excluded.expires_after, message_ttl = excluded.message_ttl,
  until = case when excluded.until is not null then max(coalesce(until, 0), excluded.until) end
-- name: bind_queue
-- in: :name :exchange :routing_key :pattern (or null)
insert or replace into message_bindings (exchange, queue, routing_key, pattern)
values (:exchange, :name, :routing_key, :pattern)
-- name: unbind_queue
-- in: :name :exchange :routing_key
delete from message_bindings where exchange = :exchange and queue = :name and routing_key = :routing_key
-- name: unbind_expired
-- in: :name :now
delete from message_bindings
where queue = :name and exists (select 1 from message_queues where name = :name and until <= :now)
-- name: unbind_all
-- in: :name
delete from message_bindings where queue = :name
-- name: bindings
-- in: :exchange (null for all) :now
-- out: exchange, routing_key and queue
select bindings.exchange, bindings.routing_key, bindings.queue
from message_bindings as bindings left join message_queues on name = queue
where (:exchange is null or exchange = :exchange) and (until is null or until > :now)
order by exchange, routing_key, queue
-- name: queue_size
-- in: :name :now
-- out: the number of copies that nobody has taken; nothing without the queue
with counted as (
  select count(*) as size from messages
  where queue = :name and taken_until is null and (expires_at is null or expires_at > :now)
)
select size from counted
where size > 0 or exists (select 1 from message_queues where name = :name and (until is null or until > :now))
-- name: purge_queue
-- in: :name
-- out: the copies that were deleted
delete from messages where queue = :name and taken_until is null returning id
-- name: delete_queue
-- in: :name
delete from message_queues where name = :name
