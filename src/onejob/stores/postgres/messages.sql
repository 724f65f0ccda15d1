-- name: put_messages
-- Write a copy of each message to each queue that its exchange and routing key lead to.
-- in: :messages (JSON: an array of objects) :durable (false: a crash of the server may lose them) :wake (whether to notify) :due_channel :now
-- out: the queues that have got a copy, which are notified
with clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now,
    case when not cast(:durable as boolean) then set_config('synchronous_commit', 'off', true) end
),
given as (
  select * from json_to_recordset(cast(:messages as json)) as given (
    position integer, id text, exchange text, routing_key text, priority integer, body text, expires_in float8
  )
),
copies as (
  select position, id, routing_key as queue, priority, body, expires_in from given where exchange = ''
  union all
  select position, id, bindings.queue, priority, body, expires_in
  from given join onejob.message_bindings as bindings using (exchange)
  where exchange <> '' and (given.routing_key = bindings.routing_key or given.routing_key ~ bindings.pattern)
),
written as (
  insert into onejob.messages (message_id, queue, priority, body, expires_at)
  select copies.id, copies.queue, copies.priority, copies.body, now + least(expires_in, message_ttl)
  from clock cross join copies left join onejob.message_queues as queues on queues.name = copies.queue
  where queues.until is null or queues.until > now
  order by position
  on conflict (message_id, queue) do nothing
  returning queue
)
select queue, case when cast(:wake as boolean) then {notify_consumers} end
from written group by queue
-- name: take_messages
-- Give the first copies in some queues to a consumer, at most :limit.
-- in: :queues (array) :limit :consumer :hold (seconds) :now
-- out: the copies
with {unsynchronized_clock},
{ready_messages},
taken as (
  update onejob.messages as messages set consumer = :consumer, taken_until = now + cast(:hold as float8)
  from clock where messages.id = any(array(select id from ready))
  returning messages.id, queue, body, redelivered, priority
)
select id, queue, body, redelivered from taken order by priority desc, id
-- name: receive_messages
-- Delete and return the first copies in some queues, at most :limit: they need no acknowledgement.
-- in: :queues (array) :limit :now
-- out: the copies
with {unsynchronized_clock},
{ready_messages},
taken as (
  delete from onejob.messages where id = any(array(select id from ready))
  returning id, queue, body, redelivered, priority
)
select id, queue, body, redelivered from taken order by priority desc, id
-- name: delete_messages
-- in: :ids (array) :consumer :now
with {unsynchronized_clock}
delete from onejob.messages using clock where id = any(cast(:ids as bigint[])) and consumer = :consumer
-- name: release_messages
-- in: :ids (array) :consumer :due_channel
-- out: the queues that have them again, which are notified
with released as (
  update onejob.messages set consumer = '', taken_until = null, redelivered = true
  where id = any(cast(:ids as bigint[])) and consumer = :consumer
  returning queue
)
select queue, {notify_consumers} from released group by queue
-- name: renew_messages
-- Extend the deadlines of a consumer's copies.
-- in: :ids (array) :consumer :hold (seconds) :now
with {unsynchronized_clock}
update onejob.messages set taken_until = now + cast(:hold as float8) from clock
where id = any(cast(:ids as bigint[])) and consumer = :consumer
-- name: renew_queues
-- Extend the lives of the temporary queues from which a consumer consumes.
-- in: :queues (array) :hold (seconds) :now
with {unsynchronized_clock}
update onejob.message_queues set until = now + greatest(expires_after, cast(:hold as float8)) from clock
where name = any(cast(:queues as text[])) and until is not null
-- name: release_abandoned
-- Return the copies of dead consumers to their queues.
-- in: :due_channel :now
-- out: the queues that have them again, which are notified
with {unsynchronized_clock},
abandoned as (
  select id from onejob.messages where taken_until <= (select now from clock) order by taken_until limit 1000
  for no key update skip locked
),
released as (
  update onejob.messages set consumer = '', taken_until = null, redelivered = true
  where id = any(array(select id from abandoned))
  returning queue
)
select queue, {notify_consumers} from released group by queue
-- name: delete_expired_messages
-- in: :now
with {unsynchronized_clock},
expired as (
  select id from onejob.messages where taken_until is null and expires_at <= (select now from clock) limit 1000
  for update skip locked
)
delete from onejob.messages where id = any(array(select id from expired))
-- name: delete_expired_queues
-- Delete the copies in the temporary queues that have no consumer; delete the queues and their bindings only after
-- `:forgotten_after` seconds, so that a suspended consumer can go on with its queue.
-- in: :forgotten_after (seconds) :now
with {unsynchronized_clock},
expired as (
  select name, until from onejob.message_queues where until <= (select now from clock) for update skip locked
),
forgotten as (
  delete from onejob.message_queues as queues using expired, clock
  where queues.name = expired.name and expired.until <= now - cast(:forgotten_after as float8)
  returning queues.name
),
unbound as (
  delete from onejob.message_bindings where queue = any(array(select name from forgotten))
)
delete from onejob.messages where taken_until is null and queue = any(array(select name from expired))
-- name: declare_queue
-- in: :name :expires_after (seconds, null: for ever) :message_ttl (seconds, or null) :now
with {clock},
unbound as (
  delete from onejob.message_bindings
  where queue = :name and exists (
    select from onejob.message_queues where name = :name and until <= (select now from clock)
  )
)
insert into onejob.message_queues (name, expires_after, until, message_ttl)
select :name, cast(:expires_after as float8), now + cast(:expires_after as float8), cast(:message_ttl as float8) from clock
on conflict (name) do update set
  expires_after = excluded.expires_after, message_ttl = excluded.message_ttl,
  until = case when excluded.until is not null then greatest(message_queues.until, excluded.until) end
-- name: bind_queue
-- in: :name :exchange :routing_key :pattern (or null)
insert into onejob.message_bindings (exchange, queue, routing_key, pattern)
values (:exchange, :name, :routing_key, cast(:pattern as text))
on conflict (exchange, queue, routing_key) do update set pattern = excluded.pattern
where message_bindings.pattern is distinct from excluded.pattern
-- name: unbind_queue
-- in: :name :exchange :routing_key
delete from onejob.message_bindings where exchange = :exchange and queue = :name and routing_key = :routing_key
-- name: bindings
-- in: :exchange (null for all) :now
-- out: exchange, routing_key and queue
with {clock}
select bindings.exchange, bindings.routing_key, bindings.queue
from clock cross join onejob.message_bindings as bindings left join onejob.message_queues as queues on name = queue
where (cast(:exchange as text) is null or exchange = :exchange) and (until is null or until > now)
order by exchange, routing_key, queue
-- name: queue_size
-- in: :name :now
-- out: the number of copies that nobody has taken; nothing without the queue
with {clock},
counted as (
  select count(*) as size from onejob.messages
  where queue = :name and taken_until is null and (expires_at is null or expires_at > (select now from clock))
)
select size from counted, clock
where size > 0 or exists (select from onejob.message_queues where name = :name and (until is null or until > now))
-- name: purge_queue
-- in: :name
-- out: how many copies were deleted
with purged as (
  delete from onejob.messages where queue = :name and taken_until is null returning id
)
select count(*) as size from purged
-- name: delete_queue
-- in: :name
with unbound as (
  delete from onejob.message_bindings where queue = :name
),
purged as (
  delete from onejob.messages where queue = :name and taken_until is null
)
delete from onejob.message_queues where name = :name
