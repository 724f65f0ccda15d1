"""A Redis broker: writes messages as Celery and kombu would, and pushes many of them in one round trip."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from celery import Celery, signals
from celery.app.amqp import AMQP
from kombu.messaging import Producer
from redis import exceptions

from onejob.celery.sender import NO_DECLARE
from onejob.celery.wire import build_template
from onejob.jobs.model import WireMessage
from onejob.stores.redis.address import push_place_of
from onejob.stores.redis.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from onejob.celery.broker import Broker
    from onejob.celery.routing import Routing
    from onejob.celery.sender import Sender
    from onejob.celery.wire import MessageKind, MessageTemplate
    from onejob.jobs.model import Submission

KIND_LIMIT = 512
"""How many kinds of messages are remembered."""
_OWN_MODULES = frozenset({
    "celery.app.amqp", "celery.app.base", "celery.backends.base", "celery.backends.redis",
    "kombu.messaging", "kombu.transport.redis", "kombu.transport.virtual.base",
})  # fmt: skip


class RedisBroker:
    """The Redis broker of one app in one process. Raises the transport's errors if it cannot be reached."""

    def __init__(self, app: Celery, broker: Broker, sender: Sender, routing: Routing) -> None:
        self._app = app
        self._broker = broker
        self._sender = sender
        self._routing = routing
        with broker.producer() as producer:
            pool = producer.channel.pool
        self._connections = Connections(pool)
        self.place = push_place_of(pool)
        """The `place` of a `MessagePushingStore` there."""
        (info,) = self._connections.execute([["INFO", "cluster"]])
        self.is_cluster = "cluster_enabled:1" in str(info)  # bytes, unless the options decode them
        """Whether the server is in cluster mode, where a script has the keys of one slot only."""
        self._templates: dict[MessageKind, MessageTemplate | None] = {}
        self._seen: set[MessageKind] = set()
        self._unwritable: set[str] = set()
        """Routes whose messages are more than one element of one list."""

    def write(
        self, kind: MessageKind, job_id: str, payload: str, *, retries: int = 0, root_id: str | None = None,
        parent_id: str | None = None,
    ) -> WireMessage | None:  # fmt: skip
        """Return a message as the broker keeps it; None for one that only Celery can send.

        A kind has a template from its second message on: some have one message only, such as those with links.
        Raises what `Sender.send` does.
        """
        if kind.route in self._unwritable or not kind.route or has_receivers():
            return None
        try:
            template = self._template_of(kind)
            message = template and template.fill(job_id, payload, retries=retries, root_id=root_id, parent_id=parent_id)
            return message or self._record(
                kind.submission(job_id, payload, retries=retries, root_id=root_id, parent_id=parent_id)
            )
        except _NotOnePushError:
            self._unwritable.add(kind.route)
            return None

    def close(self) -> None:
        """Close the connections. The next message opens new ones."""
        self._connections.close()

    def push(self, messages: Iterable[WireMessage]) -> None:
        """Push messages, in their order in each list. Raises redis-py's exceptions."""
        commands: dict[str, list[str]] = {}
        for destination, text in messages:
            commands.setdefault(destination, ["LPUSH", destination]).append(text)
        try:
            self._connections.execute(commands.values())
        except exceptions.ConnectionError:  # the server may have closed an idle connection
            self._connections.execute(commands.values())

    def _template_of(self, kind: MessageKind) -> MessageTemplate | None:
        try:
            return self._templates[kind]
        except KeyError:
            pass
        if kind not in self._seen:
            _make_room(self._seen)
            self._seen.add(kind)
            return None
        template = build_template(self._app, kind, self._record)
        _make_room(self._templates)
        self._templates[kind] = template
        return template

    def _record(self, submission: Submission) -> WireMessage:
        """Have Celery and kombu send a message, and return it instead of pushing it."""
        send_task = partial(cast("Any", Celery.send_task), _SilentApp(self._app))
        with self._broker.producer() as producer:
            for entity in self._routing.destination(submission.route)["declare"]:
                producer.maybe_declare(entity)  # once per connection, as Celery does
            with _recording(producer.channel) as pushed:
                self._sender.send(submission, producer, NO_DECLARE, send_task)
        if len(pushed) != 1:
            raise _NotOnePushError
        return pushed[0]


def is_writable(app: Celery) -> bool:
    """Tell whether a message for the broker of an app can be written as Celery would push it, and nothing is missed.

    Not if the transport is another one than kombu's for Redis (or is for Sentinel), or fails over to others; if
    Celery would send an event of each message, or the result backend prepares for each (as `rpc` does); and if
    code other than theirs takes part: a subclass, another task protocol, or functions replaced by instrumentation.
    """
    connection: Any = app.connection_for_write()
    transport, amqp = connection.transport, app.amqp
    if type(transport).__module__ != "kombu.transport.redis" or type(transport).__name__ != "Transport":
        return False
    if len(connection.alt) > 1 or app.conf.task_send_sent_event or type(amqp) is not AMQP:
        return False
    try:
        prepare = app.backend.on_task_call
    except Exception:  # noqa: BLE001 - Celery raises it for each message that needs the result backend
        return False
    channel = type(transport).Channel
    takes_part = (
        app.send_task, amqp.as_task_v2, amqp.send_task_message, prepare, Producer.publish,
        Producer._publish, channel.basic_publish, channel.prepare_message, channel._put,  # noqa: SLF001 - theirs
    )  # fmt: skip
    return amqp.create_task_message == amqp.as_task_v2 and all(map(_is_own, takes_part))


def _is_own(function: Any) -> bool:
    """Tell whether a function is one of Celery and kombu; a wrapper may have copied its name and its module."""
    function = getattr(function, "__func__", function)
    return type(function) is FunctionType and function.__globals__["__name__"] in _OWN_MODULES


def has_receivers() -> bool:
    """Tell whether the application has connected functions to Celery's signals of publications."""
    before, after, sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent
    return bool(before.receivers or after.receivers or sent.receivers)


def _make_room(kinds: set[MessageKind] | dict[MessageKind, MessageTemplate | None]) -> None:
    if len(kinds) >= KIND_LIMIT:
        kinds.clear()


# --- recording ------------------------------------------------------------------------------------------------------


class _NotOnePushError(Exception):
    """A message is more than one element of one list."""


class _Recorder:
    """In the place of the Redis client of a channel: records what is pushed."""

    def __init__(self, prefix: str) -> None:
        self.pushed: list[WireMessage] = []
        self._prefix = prefix

    def lpush(self, key: str, text: str) -> None:
        """Record a message."""
        self.pushed.append(WireMessage(self._prefix + key, text))

    def __getattr__(self, name: str) -> Any:
        raise _NotOnePushError(name)


@contextmanager
def _recording(channel: Any) -> Iterator[list[WireMessage]]:
    """Yield the list of what the channel pushes in this block, which is not pushed."""
    recorder = _Recorder(channel.global_keyprefix)

    @contextmanager
    def conn_or_acquire(client: Any = None) -> Iterator[_Recorder]:  # noqa: ARG001 - kombu's signature
        yield recorder

    channel.conn_or_acquire = conn_or_acquire
    try:
        yield recorder.pushed
    finally:
        del channel.conn_or_acquire


class _SilentApp:
    """An app for `Celery.send_task`, without the task that runs now, and with a result backend that is not told."""

    current_worker_task = None
    backend = SimpleNamespace(on_task_call=lambda _producer, _task_id: None)
    AsyncResult = staticmethod(lambda task_id: SimpleNamespace(id=task_id))

    def __init__(self, app: Celery) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)
