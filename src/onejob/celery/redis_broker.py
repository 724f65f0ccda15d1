"""A Redis broker: messages as Celery and kombu would push them, for the store's scripts, or many in one round trip."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis import exceptions

from onejob.celery.message_templates import NotOneMessageError, Templates, is_writable, send_silently
from onejob.jobs.model import BrokerMessage
from onejob.stores.redis.address import push_place_of
from onejob.stores.redis.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery import Celery

    from onejob.celery.broker import Broker
    from onejob.celery.routing import Routing
    from onejob.jobs.model import Job, Submission


class RedisBroker:
    """The Redis broker of one app in one process. Raises the transport's errors if it cannot be reached."""

    confirms = True
    """Whether a message that was pushed is on the broker."""

    def __init__(self, app: Celery, broker: Broker, routing: Routing, send: Callable[..., None]) -> None:
        self._app = app
        self._broker = broker
        self._send = send
        self._routing = routing
        with broker.producer() as producer:
            pool = producer.channel.pool
        self._connections = Connections(pool)
        self.place = push_place_of(pool)
        """The `place` of a `MessagePushingStore` there."""
        (info,) = self._connections.execute([["INFO", "cluster"]])
        self.is_cluster = "cluster_enabled:1" in str(info)  # bytes, unless the options decode them
        """Whether the server is in cluster mode, where a script has the keys of one slot only."""
        self.write = Templates(app, self._record).write

    @staticmethod
    def is_of(app: Celery) -> bool:
        """Return whether an app's messages are pushed to one Redis by Celery's and kombu's own functions alone.

        Not if it is for Sentinel, or fails over to others.
        """
        functions = ("basic_publish", "prepare_message", "_put")
        return is_writable(app, "kombu.transport.redis", functions) and len(app.connection_for_write().alt) <= 1

    def close(self) -> None:
        """Close the connections. The next message opens new ones."""
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

    def _record(self, job: Job | Submission) -> BrokerMessage:
        """Have Celery and kombu send a message, and return it instead of pushing it."""
        with self._broker.producer() as producer:
            self._routing.declare(job.route, producer)
            with _recording(producer.channel) as pushed:
                send_silently(self._app, self._send, job, producer)
        if len(pushed) != 1:
            raise NotOneMessageError
        return pushed[0]


class _Recorder:
    """In place of the Redis client of a channel: records what is pushed."""

    def __init__(self, prefix: str) -> None:
        self.pushed: list[BrokerMessage] = []
        self._prefix = prefix

    def lpush(self, key: str, text: str) -> None:
        """Record a message."""
        self.pushed.append(BrokerMessage(self._prefix + key, text))

    def __getattr__(self, name: str) -> Any:
        raise NotOneMessageError(name)


@contextmanager
def _recording(channel: Any) -> Iterator[list[BrokerMessage]]:
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
