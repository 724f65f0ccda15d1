"""The channels of the transport `onejob://`: queues, bindings and messages are rows of the ledger's database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined] # missing in the published types
from kombu.utils.json import dumps, loads

from onejob.celery.option_declarations import is_priority
from onejob.celery.transport.job_delivery import JobMessages, Taken
from onejob.errors import StoreError
from onejob.jobs.broker_messages import Delivery, NewMessage
from onejob.stores.protocol import MESSAGE, MessageStore

Source: TypeAlias = "PlainMessages | JobMessages"

BATCH = 100
"""How many messages one statement takes at most."""
TRANSIENT = 1
"""The delivery mode of messages that a broker may lose when it restarts."""
VirtualQoS: Any = virtual.QoS  # the published types know a part of the classes only
VirtualChannel: Any = virtual.Channel


# --- where the messages come from: of each connection, one object for each kind of messages --------------------------


def take_from(
    sources: Sequence[Source], queues: Sequence[str], limit: int, *, no_ack: bool
) -> tuple[list[Taken], list[Source]]:
    """Take messages, from the sources in order; return them, and the sources that may have more."""
    taken: list[Taken] = []
    left: list[Source] = []
    for source in sources:
        has_more, places = True, limit - sum(each.counts for each in taken)
        if places > 0 or source.has_limit:
            try:
                found, has_more = source.take(queues, places, no_ack=no_ack)
            except StoreError:
                if not taken:
                    raise
                found = []  # what was taken is delivered, and the next look meets the error again
            taken += found
        left += [source] if has_more else []
    return taken, left


class PlainMessages:
    """The source of the messages that are no jobs. One transport uses it, from several threads."""

    signal = MESSAGE
    """The payload of the signals about messages of this source, and of no other source."""
    has_limit = False
    """Whether the source itself limits how many messages a consumer has."""

    def __init__(self, store: MessageStore, hold: float) -> None:
        self._store = store
        self._hold = hold
        """Seconds after which the messages of a dead consumer are delivered again."""
        self._consumer = uuid4().hex
        self._held: set[int] = set()

    def take(self, queues: Sequence[str], limit: int, *, no_ack: bool) -> tuple[list[Taken], bool]:
        """Return the first messages in queues, and whether there may be more; `no_ack`: they count as acknowledged."""
        hold = 0.0 if no_ack else self._hold
        found = self._store.take_messages(queues, limit=limit, consumer=self._consumer, hold=hold)
        if not no_ack:
            self._held.update(each.id for each in found)
        return [Taken(f"{each.id}", each.queue, _payload(each)) for each in found], len(found) == limit

    def ack(self, tags: Sequence[str]) -> None:
        """Delete messages; tags of jobs are ignored."""
        if ids := self._held_of(tags):
            self._store.delete_messages(ids, consumer=self._consumer)
            self._held.difference_update(ids)

    def requeue(self, tags: Sequence[str]) -> None:
        """Put messages back to their places in their queues; tags of jobs are ignored."""
        if ids := self._held_of(tags):
            self._store.release_messages(ids, consumer=self._consumer)
            self._held.difference_update(ids)

    def renew(self, queues: Sequence[str]) -> bool:
        """Extend the deadlines of queues and of all held messages; return whether messages are held."""
        self._store.renew_messages([*self._held], queues, consumer=self._consumer, hold=self._hold)
        return bool(self._held)

    def _held_of(self, tags: Sequence[str]) -> list[int]:
        return [int(tag) for tag in tags if tag.isdecimal() and int(tag) in self._held]


def _payload(delivery: Delivery) -> dict[str, Any]:
    payload: dict[str, Any] = loads(delivery.body)
    payload["properties"]["delivery_tag"] = f"{delivery.id}"
    if delivery.redelivered:
        payload["headers"]["redelivered"] = payload["properties"]["delivery_info"]["redelivered"] = True
    return payload


# --- channels -------------------------------------------------------------------------------------------------------


class QoS(VirtualQoS):  # type: ignore[misc]
    """The messages that a channel has taken and not acknowledged."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()  # what a lost process has taken is delivered again after a while
        self._uncounted: set[str] = set()
        """The tags of the messages that do not count as prefetched."""

    def add(self, message: Any, taken: Taken) -> None:
        """Keep a message until it is acknowledged."""
        self.append(message, taken.tag)
        if not taken.counts:
            self._uncounted.add(taken.tag)

    def free_places(self) -> int:
        """Return how many more messages the channel may have."""
        self._flush()
        used = len(self._delivered) - len(self._uncounted)
        return BATCH if not self.prefetch_count else min(BATCH, max(0, self.prefetch_count - used))

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.reject(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Delete a message, or return it to its queue."""
        super().ack(delivery_tag)
        self._uncounted.discard(delivery_tag)
        transport = self.channel.connection
        if transport is not None:  # otherwise its messages were returned
            if requeue:
                transport.requeue([delivery_tag])
            else:
                transport.ack(delivery_tag)
            if self.channel.has_due:  # there was no place for all messages; the consumers' thread may be another one
                transport.wake()

    def restore_unacked(self) -> list[Any]:
        """Return all messages to their queues."""
        self._flush()
        tags = [*self._delivered]
        self._delivered.clear()
        self._uncounted.clear()
        self.channel.connection.requeue(tags)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002 - kombu's signature
        """Return all messages to their queues; if the store is away, they are delivered again after a while."""
        with suppress(StoreError):
            self.restore_unacked()


class Consumer(NamedTuple):
    """One consumer of a channel: its queue and its callback."""

    queue: str
    no_ack: bool
    callback: Callable[[Any], object]
    unsubscribe: Callable[[], None]


class Channel(VirtualChannel):  # type: ignore[misc]
    """A channel whose queues, bindings and messages are rows."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._consumers: dict[str, Consumer] = {}
        self._pending: deque[tuple[Consumer, Any]] = deque()
        self._due: dict[bool, set[Source]] = {True: set(), False: set()}
        """The sources that may have more messages, for consumers without acknowledgements (True) and with them."""

    # --- queues and bindings ----------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return the arguments of a queue, as RabbitMQ names them."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)  # type: ignore[no-any-return] # missing types

    def queue_declare(self, queue: str | None = None, *, passive: bool = False, **options: Any) -> queue_declare_ok_t:
        """Create a queue; with `passive` only look for it. Raises `ChannelError` 404 if it does not exist."""
        name = queue or f"amq.gen-{uuid4()}"
        size = self.connection.store.queue_size(name)
        if not passive:
            given = options.get("arguments") or {}
            expires, ttl = given.get("x-expires"), given.get("x-message-ttl")
            ends_with_consumer = options.get("auto_delete") or options.get("exclusive")
            is_temporary = ends_with_consumer or expires is not None
            if ends_with_consumer:
                self.connection.deleted_at_end.add(name)
            self.connection.store.declare_queue(
                name,
                expires_after=max(self.connection.hold, (expires or 0) / 1000) if is_temporary else None,
                message_ttl=None if ttl is None else ttl / 1000,
            )
        elif size is None:
            raise ChannelError(f"NOT_FOUND - no queue {name!r}", (50, 10), "Channel.queue_declare", 404)
        return queue_declare_ok_t(name, size or 0, 0)

    def _purge(self, queue: str) -> int:
        return int(self.connection.store.purge_queue(queue))

    def queue_delete(self, queue: str, *_: Any, if_empty: bool = False, **__: Any) -> None:
        """Delete a queue."""
        if not (if_empty and self.connection.store.queue_size(queue)):
            self.connection.store.delete_queue(queue)

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any) -> None:
        """Bind a queue to the messages of an exchange."""
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange)
        pattern = kind.key_to_pattern(routing_key) if kind.type == "topic" else "" if kind.type == "fanout" else None
        self.connection.store.bind_queue(queue, exchange, routing_key, pattern)

    def queue_unbind(self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any) -> None:
        """Remove a binding."""
        self.connection.store.unbind_queue(queue, exchange or "amq.direct", routing_key)

    def exchange_delete(self, exchange: str, **_: Any) -> None:
        """Remove the bindings of an exchange."""
        for _exchange, routing_key, queue in self.connection.store.bindings(exchange):
            self.connection.store.unbind_queue(queue, exchange, routing_key)
        self.state.exchanges.pop(exchange, None)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        """Return queue, exchange and routing key of each binding."""
        return [(queue, exchange, key) for exchange, key, queue in self.connection.store.bindings()]

    # --- messages ---------------------------------------------------------------------------------------------------

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Return a body in a form that JSON can have, and its encoding: only bytes need an encoding."""
        encoded: tuple[Any, str | None] = super().encode_body(body, encoding if isinstance(body, bytes) else None)
        return encoded

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        """Write a message to its queues."""
        self._inplace_augment_message(message, exchange, routing_key)
        properties = message["properties"]
        expiration = properties.get("expiration")
        new = NewMessage(
            id=properties["delivery_tag"], exchange=exchange, routing_key=routing_key, body=dumps(message),
            priority=priority if is_priority(priority := properties.get("priority")) else 0,
            expires_in=None if expiration is None else int(expiration) / 1000,
        )  # fmt: skip
        is_event = bool(exchange) and self.typeof(exchange).type == "topic"
        self.connection.publish(new, durable=properties.get("delivery_mode") != TRANSIENT, wake=not is_event)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the first message of a queue, or None."""
        taken, _left = take_from(self.connection.sources, [queue], 1, no_ack=no_ack)
        self.connection.requeue([each.tag for each in taken[1:]])  # a worker takes as many jobs as it has places
        return self._received(taken[0], no_ack=no_ack) if taken else None

    def basic_consume(
        self, queue: str, no_ack: bool,  # noqa: FBT001 - kombu's signature
        callback: Callable[[Any], object], consumer_tag: str, **_: Any,
    ) -> None:  # fmt: skip
        """Pass the messages of a queue to a function from now on."""
        unsubscribe = self.connection.subscribe(partial(self.look, no_ack), queue)
        self._consumers[consumer_tag] = Consumer(queue, no_ack, callback, unsubscribe)
        self.connection.keep()
        self.look(no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer, and its queue if the queue ends with its last consumer."""
        consumer = self._consumers.pop(consumer_tag, None)
        if consumer is None:
            return
        consumer.unsubscribe()
        self.connection.jobs.cancel()
        for source in self.connection.sources:
            self.connection.announce(source, self.connection.consumed())  # the others look for what was returned
        if consumer.queue in self.connection.deleted_at_end:
            self.connection.deleted_at_end.discard(consumer.queue)
            with suppress(StoreError):  # it expires
                self.queue_delete(consumer.queue)

    def consumed(self) -> list[str]:
        """Return the queues from which this channel consumes."""
        return [consumer.queue for consumer in [*self._consumers.values()]]

    @property
    def has_acks(self) -> bool:
        """Whether all consumers of the channel acknowledge messages: consumers of tasks do, of commands do not."""
        return not any(consumer.no_ack for consumer in [*self._consumers.values()])

    @property
    def has_due(self) -> bool:
        """Whether the channel may have more messages for its consumers."""
        return any(self._due.values())

    def look(self, no_ack: bool, payload: str = "") -> None:  # noqa: FBT001 - for `partial`
        """Let the thread of the consumers look for the messages of a signal; any thread may call this method."""
        if self.connection is None:  # it was closed while a signal arrived
            return
        sources = [source for source in self.connection.sources if payload in {"", source.signal}]
        if self.connection.jobs in sources:
            self.connection.jobs.note_arrival()
        self._due[no_ack].update(sources)
        self.connection.wake()

    def look_in(self, *sources: Source) -> None:
        """Let the thread of the consumers take from sources; any thread may call this method."""
        for due in self._due.values():
            due.update(sources)

    def deliver(self) -> bool:
        """Pass one message to its consumer, and return whether there was a message."""
        if not self._pending and self.has_due:
            self._take()
        if not self._pending:
            return False
        consumer, message = self._pending.popleft()
        consumer.callback(message)
        return True

    def _take(self) -> None:
        for no_ack, due in self._due.items():
            sources = [source for source in self.connection.sources if source in due]
            due.difference_update(sources)  # before they are asked: a signal may come meanwhile
            consumers = {each.queue: each for each in [*self._consumers.values()] if each.no_ack is no_ack}
            limit = BATCH if no_ack else self.qos.free_places()
            taken, left = self.connection.take(sources if consumers else (), [*consumers], limit, no_ack=no_ack)
            due.update(left)
            self._pending.extend((consumers[each.queue], self._received(each, no_ack=no_ack)) for each in taken)

    def _received(self, taken: Taken, *, no_ack: bool) -> Any:
        message = self.Message(taken.payload, channel=self)
        if not no_ack:
            self.qos.add(message, taken)
            self.connection.keep()
        return message
