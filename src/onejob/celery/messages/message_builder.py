"""Builds the messages of jobs in the form of Celery and kombu, for the store's script or many in one write.

Celery's own functions make the first messages of a kind (`as_task_v2`, `send_task_message`, kombu's `Producer`), on a
channel that keeps what is published. Later messages are that form with the values of their jobs. So they save the
slow parts of `send_task`: routing, which the job has already, pools, and a round trip for each message.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import unwrap
from itertools import count, repeat
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import amqp
from amqp.serialization import dumps
from celery import Celery
from celery.utils.nodenames import anon_nodename
from kombu.messaging import Producer
from kombu.transport.pyamqp import Channel as AmqpChannel
from kombu.utils.functional import maybe_list
from kombu.utils.uuid import uuid
from redis import exceptions

from onejob.celery.messages.broker import TRIES, Broker, is_writable
from onejob.celery.messages.payload import MARK, Message, decode, loads, to_json
from onejob.celery.messages.routing import Routing
from onejob.jobs.handover import BrokerMessage
from onejob.jobs.model import JobRow, Submission
from onejob.observability.tracing import TRACE_CONTEXT
from onejob.stores.redis.connection import Connections, address_of

_CACHE_SIZE = 512
"""How many kinds of messages (task, options, route, priority), and declared routes, are remembered."""
_CONTENT = (
    "group_id", "group_index", "chord", "time_limit", "soft_time_limit", "shadow", "chain", "ignore_result",
    "replaced_task_nesting", "reply_to",
)  # fmt: skip
"""The options that `send_task` passes to `as_task_v2` only; all others are options of the publication, too."""
_CALLBACKS = {"link": "callbacks", "link_error": "errbacks"}
"""The names of arguments of `as_task_v2`, by the options of `send_task`."""
_PARENTS = ("root_id", "parent_id")
_OWN_HEADERS = ("id", *_PARENTS, "retries", "argsrepr", "kwargsrepr")
"""The headers in which jobs of one kind differ, besides onejob's own header."""
_OWN = (*_OWN_HEADERS, "reply_to")
_HAS_OWN = re.compile(f'"({"|".join((*_PARENTS, *TRACE_CONTEXT))})"').search
_SIZE = 4
"""How many bytes the size of a table has in AMQP 0-9-1."""
_REPR_LEVELS = 3
"""How deep Celery shows arguments, unless it is configured."""


class NotOneMessageError(Exception):
    """The publication of a job by Celery is not one message to one queue."""


@dataclass(slots=True)
class _Kind:
    """The kind of a message: the common parts of all messages of one task with equal options, on one route."""

    content: dict[str, Any]
    """The common arguments of `as_task_v2`."""
    publication: dict[str, Any]
    """The common arguments of `send_task_message`."""
    headers: dict[str, Any]
    form: Any = None
    """The form: a message without the values of its job, made of the first message that Celery has published."""
    first_id: str = ""
    is_uniform: bool | None = None
    """Whether the form with another job's values is the message that Celery publishes for it. None: not known yet."""


class DirectBroker:
    """The broker of one app in one process; subclasses know a transport."""

    confirms: bool
    """Whether a push returns only when the broker has the message."""

    def __init__(self, app: Celery, broker: Broker, routing: Routing) -> None:
        self._app: Any = app  # the published types know no `thread_oid`
        self._broker = broker
        self._routing = routing
        self._origin = anon_nodename()
        self._shown_size = int(app.amqp.argsrepr_maxsize)
        self._shown_levels = app.conf.get("task_repr_maxlevels", _REPR_LEVELS) or _REPR_LEVELS
        self._delivery_mode = app.conf.task_default_delivery_mode
        self._kind_of = lru_cache(_CACHE_SIZE)(self._new_kind)

    def write(self, job: JobRow | Submission) -> Any:
        """Return the message of a job to push; None if only Celery can send it. Raises as Celery's `send_task` does."""
        if not job.route:
            return None
        try:
            return self.compose(job)
        except NotOneMessageError:
            return None

    def compose(self, job: JobRow | Submission) -> Any:
        """Return the message of a job with a route. Raises `NotOneMessageError`, and as `write` does."""
        kind, own, call = self._parts_of(job)
        if kind.is_uniform and "argsrepr" in own:
            return self._fill(kind.form, own, call)
        written = self._write_by_celery(kind, job, own, call)
        return self._add_headers(written, call.context) if call.context else written

    def send(self, job: JobRow, producer: Any, options: Mapping[str, Any]) -> None:
        """Publish the message of a job with a route. `options`: of the publication. Raises any exception."""
        kind, own, call = self._parts_of(job)
        if not kind.content.get("ignore_result"):
            self._app.backend.on_task_call(producer, job.id)
        message = self._message(kind, job, own, call, create_sent_event=self._app.conf.task_send_sent_event)
        headers = {**kind.headers, **call.context, MARK: job.id}
        publication = {**kind.publication, **self._routing.destination(job.route), **options, "headers": headers}
        with producer.connection._reraise_as_library_errors():  # noqa: SLF001 - kombu's, as Celery calls it
            self._publish_by(producer, message, publication)
        if message.sent_event:
            where = {"queue": getattr(publication["queue"], "name", None), "exchange": publication["exchange"]}
            event = {**message.sent_event, **where, "routing_key": publication["routing_key"]}
            self._dispatcher.publish("task-sent", event, producer, retry=publication["retry"], retry_policy=TRIES)

    @cached_property
    def _dispatcher(self) -> Any:
        return self._app.events.Dispatcher(enabled=False)

    def _parts_of(self, job: JobRow | Submission) -> tuple[_Kind, dict[str, Any], Message]:
        """Return the kind of a job's message, the values of this message alone, and its call."""
        options = job.options
        single: dict[str, Any] = {}
        if _HAS_OWN(options):  # what single jobs have: the ids of a run, and the trace, which runs read in the job
            given = loads(options)
            single = {name: given.pop(name) for name in (*_PARENTS, *TRACE_CONTEXT) if name in given}
            options = to_json(given)
        call = decode(job.payload)
        kind = self._kind_of(call.task, options, job.route, job.priority_rank)
        own = {
            "id": job.id, "root_id": single.get("root_id") or job.id, "parent_id": single.get("parent_id"),
            "retries": job.retries, "reply_to": self._app.thread_oid, **self._shown(call.args, call.kwargs),
        }  # fmt: skip
        for name in kind.content.keys() & own.keys():
            own[name] = kind.content[name]
        return kind, own, call

    def _message(
        self, kind: _Kind, job: JobRow | Submission, own: dict[str, Any], call: Message, **options: Any
    ) -> Any:  # fmt: skip
        content = {**kind.content, **{name: value for name, value in own.items() if name != "id"}, **options}
        return self._app.amqp.as_task_v2(job.id, call.task, call.args, call.kwargs, **content)

    def _write_by_celery(self, kind: _Kind, job: JobRow | Submission, own: dict[str, Any], call: Message) -> Any:
        """Let Celery publish a message, and learn its kind: the first message is the form, the second one tests it."""
        self._declare(job.route)
        message = self._message(kind, job, own, call)
        written = self._publish(message, {**kind.publication, "headers": {**kind.headers, MARK: job.id}})
        if kind.is_uniform is False:
            return written
        if not kind.first_id:
            kind.form, kind.first_id = self._form_of(written, message.body[2]), job.id
        elif kind.is_uniform is None and job.id != kind.first_id and "argsrepr" in own:
            kind.is_uniform = self._are_equal(written, self._fill(kind.form, own, call._replace(context={})))
        return written

    def _declare(self, route: str) -> None:
        """Declare the queue of a route, as Celery does for each message, unless each push declares it."""

    def _publish(self, message: Any, publication: Mapping[str, Any]) -> Any:
        """Let kombu publish a message on the recording channel, and return the recorded message."""
        raise NotImplementedError

    def _publish_by(self, producer: Any, message: Any, publication: Mapping[str, Any]) -> Any:
        """Publish a message by a producer, in place of Celery's `send_task_message`, and return the same value.

        Celery's signals of publications were sent at the submission, which has the headers of their receivers.
        """
        given = {name: value for name, value in publication.items() if name not in {"queue", "exchange_type"}}
        exchange = getattr(publication["queue"], "exchange", None)
        delivery_mode = given.get("delivery_mode") or getattr(exchange, "delivery_mode", None) or self._delivery_mode
        serializer, compression = self._routing.encoding(given)
        sent = {"serializer": serializer, "compression": compression, "delivery_mode": delivery_mode}
        headers = {**message.headers, **publication["headers"]}
        publish = unwrap(type(producer).publish)  # what wraps it has taken part in the submission, too
        return publish(producer, message.body, **{**message.properties, **given, **sent, "headers": headers})

    def _form_of(self, written: Any, embedded: dict[str, Any]) -> Any:
        """Return a message without the values of its job; `embedded`: the parts of its body besides the arguments."""
        raise NotImplementedError

    def _fill(self, form: Any, own: dict[str, Any], call: Message) -> Any:
        """Return a form with the values and the context of a job, its body as JSON, uncompressed."""
        raise NotImplementedError

    def _add_headers(self, written: Any, headers: Mapping[str, Any]) -> Any:
        """Return a message with more headers."""
        raise NotImplementedError

    def _are_equal(self, one: Any, other: Any) -> bool:
        """Return whether two messages are equal except for their random parts."""
        raise NotImplementedError

    def _new_kind(self, task: str, options: str, route: str, priority_rank: int) -> _Kind:  # noqa: ARG002 - a part of the key
        given = self._routing.with_priority(loads(options), priority_rank)
        headers = given.pop("headers", None) or {}
        content = {name: given.pop(name) for name in _CONTENT if name in given}
        content |= {_CALLBACKS[name]: maybe_list(given.pop(name)) for name in _CALLBACKS if name in given}
        content = {"origin": self._origin, **given, **content}
        for stamp in given.pop("stamped_headers", ()):
            del given[stamp]
        is_json = self._routing.encoding(given) == ("json", None)
        publication = {**given, **self._routing.destination(route), "retry": False, "declare": []}
        return _Kind(content, publication, headers, is_uniform=None if is_json else False)

    def _shown(self, args: list[Any], kwargs: dict[str, Any]) -> dict[str, str]:
        """Return Celery's texts of arguments, which are slow to make, if plain `repr` gives the same texts; else {}."""
        shown = {"argsrepr": repr(args or ()), "kwargsrepr": repr(kwargs)}  # Celery replaces an empty list
        for text in shown.values():
            if len(text) >= self._shown_size or "\\" in text or '"' in text:
                return {}
            if text.count("[") + text.count("{") > self._shown_levels:
                return {}
        return shown


# --- Redis ----------------------------------------------------------------------------------------------------------


class RedisBroker(DirectBroker):
    """A Redis broker. Raises the transport's errors if it cannot be reached."""

    confirms = True

    def __init__(self, app: Celery, broker: Broker, routing: Routing) -> None:
        super().__init__(app, broker, routing)
        self._declared: set[str] = set()
        self._tags = map("{}-{:012x}".format, repeat(uuid()[:23]), count())
        """The delivery tags: one UUID with a growing number as its end, since new UUIDs are slow to make."""
        self._recorder = _RecordingClient()
        with broker.producer() as producer:
            self._channel = channel = producer.channel and producer.connection.channel()  # the first one connects
        # Where a channel of kombu takes a client. A message through a named exchange reads bindings: it is refused.
        channel.conn_or_acquire = lambda _client=None: nullcontext(self._recorder)
        self._producer = Producer(channel, auto_declare=False)
        self._prefix = channel.global_keyprefix
        self._connections = Connections(channel.pool)
        self.address = address_of(channel.pool)
        """The `address` that a `MessagePushingStore` on this server has."""
        (info,) = self._connections.execute([["INFO", "cluster"]])
        self.is_cluster = "cluster_enabled:1" in str(info)  # bytes, unless the options decode them
        """Whether the server is in cluster mode, where a script has the keys of one slot only."""

    @staticmethod
    def is_of(app: Celery) -> bool:
        """Return whether Celery and kombu alone push an app's messages to one Redis, without Sentinel and failover."""
        functions = ("basic_publish", "prepare_message", "_put")
        return is_writable(app, "kombu.transport.redis", functions) and len(app.connection_for_write().alt) <= 1

    def close(self) -> None:
        """Close the connections. The next message opens new connections."""
        self._connections.close()

    def push(self, messages: Iterable[BrokerMessage]) -> None:
        """Push messages, in their order in each list. Raises redis-py's exceptions."""
        commands: dict[str, list[str]] = {}
        for destination, text in messages:
            commands.setdefault(destination, ["LPUSH", destination]).append(text)
        try:
            self._connections.execute(commands.values())
        except exceptions.ConnectionError:  # the server may have closed an idle connection
            self._connections.execute(commands.values())

    def _declare(self, route: str) -> None:
        if route not in self._declared:
            if len(self._declared) >= _CACHE_SIZE:
                self._declared.clear()
            with self._broker.producer() as producer:
                self._routing.declare(route, producer)
            self._declared.add(route)

    def _publish(self, message: Any, publication: Mapping[str, Any]) -> BrokerMessage:
        pushed: list[BrokerMessage] = []
        self._recorder.pushed = pushed
        queue = publication["queue"]
        if queue is not None and (queue.expires or "x-expires" in (queue.queue_arguments or ())):
            raise NotOneMessageError  # each message prolongs the life of its list
        self._publish_by(self._producer, message, publication)
        if len(pushed) != 1:
            raise NotOneMessageError
        return BrokerMessage(self._prefix + pushed[0].destination, pushed[0].text)

    def _form_of(self, written: BrokerMessage, embedded: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        envelope = loads(written.text)
        marks = {name: f"{name}-{uuid()}" for name in (*_OWN, "body", "tag", "context")}
        envelope["body"] = marks["body"]
        headers = {name: value for name, value in envelope["headers"].items() if name != MARK}
        envelope["headers"] = headers | {name: marks[name] for name in _OWN_HEADERS} | {MARK: marks["context"]}  # last
        own = {"correlation_id": marks["id"], "reply_to": marks["reply_to"], "delivery_tag": marks["tag"]}
        envelope["properties"] |= own
        text = to_json(envelope).replace("%", "%%")
        for name, mark in marks.items():
            text = text.replace(quote(mark), f"%({name})s")
        return written.destination, text, embedded

    def _fill(self, form: tuple[str, str, dict[str, Any]], own: dict[str, Any], call: Message) -> BrokerMessage:
        destination, text, embedded = form
        body, _ = self._channel.encode_body(to_json((call.args, call.kwargs, embedded)), self._channel.body_encoding)
        parent_id = own["parent_id"]
        values = {
            "id": quote(own["id"]), "root_id": quote(own["root_id"]), "retries": own["retries"],
            "parent_id": "null" if parent_id is None else quote(parent_id), "reply_to": quote(own["reply_to"]),
            "argsrepr": quote(own["argsrepr"]), "kwargsrepr": quote(own["kwargsrepr"]), "body": quote(body),
            "tag": quote(next(self._tags)), "context": quote(own["id"]),
        }  # fmt: skip
        if call.context:  # more members of the object, in which the last one of a name counts
            values["context"] += f", {to_json(call.context)[1:-1]}"
        return BrokerMessage(destination, text % values)

    def _add_headers(self, written: BrokerMessage, headers: Mapping[str, Any]) -> BrokerMessage:
        envelope = loads(written.text)
        envelope["headers"] |= headers
        return written._replace(text=to_json(envelope))

    def _are_equal(self, one: BrokerMessage, other: BrokerMessage) -> bool:
        first, second = loads(one.text), loads(other.text)
        second["properties"]["delivery_tag"] = first["properties"].get("delivery_tag")
        return to_json(first) == to_json(second)


class _RecordingClient(threading.local):
    """A stand-in for the Redis client of a channel: keeps the text that a thread pushes, and refuses other commands."""

    pushed: list[BrokerMessage]

    def lpush(self, key: str, text: str) -> None:
        self.pushed.append(BrokerMessage(key, text))

    def __getattr__(self, name: str) -> Any:
        raise NotOneMessageError(name)


# --- RabbitMQ ---------------------------------------------------------------------------------------------------------


class AmqpMessage(NamedTuple):
    """A message of py-amqp, with its exchange and routing key, and the route of its job."""

    route: str
    message: Any
    exchange: str
    routing_key: str


class AmqpBroker(DirectBroker):
    """A RabbitMQ broker, without waiting for confirms: the ledger has the jobs, and publishes lost messages again."""

    confirms = False

    def __init__(self, app: Celery, broker: Broker, routing: Routing) -> None:
        super().__init__(app, broker, routing)
        self._producer = Producer(cast("Any", _RecordingAmqpChannel()), auto_declare=False)
        self._declared: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """The routes whose queues were declared, by channel."""

    @staticmethod
    def is_of(app: Celery) -> bool:
        """Return whether an app's messages are published by the functions of Celery, kombu and py-amqp alone."""
        return is_writable(app, "kombu.transport.pyamqp", ("basic_publish", "prepare_message"))

    def close(self) -> None:
        """Do nothing: the connections belong to the broker's pool."""

    def push(self, messages: Sequence[AmqpMessage]) -> None:
        """Write messages to the socket, in order; all once more on a new connection. Raises the transport's errors."""
        with self._broker.producer() as producer:
            producer.connection.ensure(producer, self._push, **TRIES)(producer, messages)

    def write(self, job: JobRow | Submission) -> AmqpMessage | None:
        """Return the message of a job, for `push`."""
        written: AmqpMessage | None = super().write(job)
        return written and written._replace(route=job.route)

    def _publish(self, message: Any, publication: Mapping[str, Any]) -> AmqpMessage:
        published: AmqpMessage = self._publish_by(self._producer, message, publication)
        return published

    def _add_headers(self, written: AmqpMessage, headers: Mapping[str, Any]) -> AmqpMessage:
        properties = written.message.properties
        added = {**properties, "application_headers": {**properties["application_headers"], **headers}}
        return written._replace(message=amqp.Message(written.message.body, **added))

    def _form_of(self, written: AmqpMessage, embedded: dict[str, Any]) -> tuple[AmqpMessage, dict[str, Any], bytes]:
        headers = written.message.properties["application_headers"]
        common = {name: value for name, value in headers.items() if name not in {*_OWN_HEADERS, MARK}}
        return written, embedded, _packed(common)

    def _fill(self, form: tuple[AmqpMessage, dict[str, Any], bytes], own: dict[str, Any], call: Message) -> AmqpMessage:
        written, embedded, common = form
        headers = {**{name: own[name] for name in _OWN_HEADERS}, MARK: own["id"], **call.context}
        properties = {**written.message.properties, "correlation_id": own["id"], "reply_to": own["reply_to"]}
        properties["application_headers"] = every = {**properties["application_headers"], **headers}
        message = _FilledMessage(to_json((call.args, call.kwargs, embedded)), **properties)
        message.packed_headers = _packed(every) if call.context else common + _packed(headers)
        return written._replace(message=message)

    def _are_equal(self, one: AmqpMessage, other: AmqpMessage) -> bool:
        return (_received(one.message), one.message.body) == (_received(other.message), other.message.body)

    def _push(self, producer: Any, messages: Sequence[AmqpMessage]) -> None:
        channel = producer.channel
        declared = self._declared.setdefault(channel, set())
        for route, message, exchange, routing_key in messages:
            if route not in declared:
                if len(declared) >= _CACHE_SIZE:
                    declared.clear()
                self._routing.declare(route, producer)
                declared.add(route)
            channel.basic_publish(message, exchange, routing_key)


class _FilledMessage(amqp.Message):
    """A message whose headers are packed already; headers that are equal in all messages of a kind are packed once."""

    packed_headers: bytes

    def _serialize_properties(self) -> bytes:
        """Return the properties for a frame: py-amqp packs all but the headers, which stand behind the first two."""
        others = _serialized(amqp.Message(**{**self.properties, "application_headers": {}}))
        start = 2 + sum(1 + len(self.properties[name]) for name in ("content_type", "content_encoding"))
        size = len(self.packed_headers).to_bytes(_SIZE, "big")
        return others[:start] + size + self.packed_headers + others[start + _SIZE :]


def _packed(headers: dict[str, Any]) -> bytes:
    """Return headers packed as a table of AMQP, without the size of the table."""
    return dumps("F", (headers,))[_SIZE:]


def _serialized(message: Any) -> bytes:
    """Return the properties of a message as a consumer receives them."""
    properties: bytes = message._serialize_properties()  # noqa: SLF001 - what py-amqp calls to write a frame
    return properties


def _received(message: Any) -> Any:
    """Return the properties of a message as a consumer reads them."""
    copy: Any = amqp.Message()
    copy._load_properties(amqp.spec.Basic.CLASS_ID, _serialized(message), 0)  # noqa: SLF001 - as above
    return copy.properties


class _RecordingAmqpChannel:
    """A channel without a connection, which returns the published message."""

    connection = None

    def prepare_message(self, *args: Any, **options: Any) -> Any:
        return AmqpChannel.prepare_message(cast("Any", self), *args, **options)

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **options: Any) -> AmqpMessage:
        if any(options.values()):
            raise NotOneMessageError
        return AmqpMessage("", message, exchange, routing_key)
