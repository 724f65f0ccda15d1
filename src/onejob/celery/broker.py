"""The connections of one app to its broker, with a timeout, and the errors that mean that the broker is away."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.exceptions import MessageNacked
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.pools import ProducerPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

_OUTAGES = frozenset({
    "ConnectionError", "TimeoutError",
    "ReadOnlyError", "OutOfMemoryError", "ClusterDownError", "MasterDownError", "TryAgainError", "MessageNacked",
})  # fmt: skip
"""Names of exception classes: of the broker or the result backend, and of the states in which they refuse writes."""
NOT_FOUND = "404"
"""The reply code of the channel error for a queue that does not exist."""
TRIES = {"max_retries": 1, "interval_start": 0}
"""How often kombu tries to connect: by default for ever."""


class Broker:
    """The broker of one app. `timeout`: seconds until an operation fails."""

    def __init__(self, app: Celery, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._pools: dict[int, ProducerPool] = {}

    @contextmanager
    def producer(self) -> Iterator[Any]:
        """Yield a producer of kombu, with a connection of its own."""
        with self._pool().acquire(block=True, timeout=self._timeout) as producer:
            yield producer

    def close(self) -> None:
        """Close this process's connections. The next message opens new ones."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.connections.force_close_all()

    def is_own(self, producer: Any) -> bool:
        """Tell whether a given producer sends to this broker: None, or as the one of the members of a group does."""
        return producer is None or _address(producer.connection) == self._address

    @contextmanager
    def batch(self, producer: Any) -> Iterator[Any]:
        """Yield a producer whose messages are sent, or confirmed, together at the end; None if it has none."""
        if getattr(producer, "supports_batch_publish", False):
            with producer.batch():
                yield producer
        elif getattr(producer.channel.connection, "confirm_publish", False):
            with producer.connection.channel() as channel, _confirming(channel, self._timeout) as confirmed:
                yield producer.__class__(confirmed)
        else:
            yield None

    def is_outage(self, error: BaseException) -> bool:
        """Tell whether an exception means that the broker accepts no messages now, whatever the message."""
        error = _unwrapped(error)
        names = {base.__name__ for base in type(error).__mro__}
        if isinstance(error, KeyError):  # which kombu regards as a connection error of Redis
            return False
        if not names.isdisjoint(_OUTAGES) or str(error).startswith("MISCONF"):
            return True
        return isinstance(error, self._connection_errors) and not isinstance(error, self.channel_errors)

    @cached_property
    def channel_errors(self) -> tuple[type[BaseException], ...]:
        """The errors that are about one message, or about an earlier one of the same channel."""
        return tuple(self._app.connection_for_write().channel_errors)

    @cached_property
    def _address(self) -> tuple[Any, ...]:
        return _address(self._app.connection_for_write())

    @cached_property
    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        return (OperationalError, LimitExceeded, OSError, *self._app.connection_for_write().connection_errors)

    def _pool(self) -> ProducerPool:
        """Return this process's producers: a forked child must not use its parent's sockets."""
        pool = self._pools.get(os.getpid())
        if pool is None:
            connection = self._app.connection_for_write(connect_timeout=self._timeout)
            defaults = timeout_options(connection, self._timeout) | _confirm_options(connection)
            connection.transport_options = defaults | (connection.transport_options or {}) | TRIES
            limit = self._app.conf.broker_pool_limit or 10
            pool = self._pools[os.getpid()] = ProducerPool(connections=connection.Pool(limit), limit=limit)
        return pool


def is_reset(error: BaseException) -> bool:
    """Return whether an exception means that the connection was closed, as a server does with an idle one."""
    return "ConnectionError" in {base.__name__ for base in type(_unwrapped(error)).__mro__}


def _unwrapped(error: BaseException) -> BaseException:
    """Return the transport's error in one of kombu."""
    return error.__cause__ if isinstance(error, OperationalError) and error.__cause__ is not None else error


def _address(connection: Any) -> tuple[Any, ...]:
    return tuple(getattr(connection, name) for name in ("transport_cls", "hostname", "port", "userid", "virtual_host"))


@contextmanager
def _confirming(channel: Any, timeout: float) -> Iterator[Any]:
    """Yield a new channel of py-amqp, on which RabbitMQ confirms messages together: it writes them to disk once."""
    vars(channel).pop("basic_publish", None)  # which waits for each confirmation
    channel.confirm_select()
    publish, unconfirmed, nacked = channel.basic_publish, set[int](), []
    tags = count(1)

    def basic_publish(*args: Any, **options: Any) -> Any:
        unconfirmed.add(next(tags))
        return publish(*args, **{name: value for name, value in options.items() if name != "confirm_timeout"})

    def confirm(tag: int, multiple: bool) -> None:  # noqa: FBT001 - the signature of py-amqp
        unconfirmed.difference_update(range(1, tag + 1) if multiple else (tag,))

    channel.basic_publish = basic_publish
    channel.events["basic_ack"].add(confirm)
    channel.events["basic_nack"].add(lambda tag, _multiple: nacked.append(tag))
    yield channel
    deadline = monotonic() + timeout
    while unconfirmed and not nacked:
        channel.connection.drain_events(timeout=max(0.001, deadline - monotonic()))
    if nacked:
        raise MessageNacked


def queue_length(connection: Any, name: str) -> int | None:
    """Return the number of messages in a queue; None if there is no such queue, which on Redis an empty one is.

    Creates nothing. Raises the transport's errors.
    """
    try:
        with connection.channel() as channel:  # which an unknown queue closes
            return int(channel.queue_declare(queue=name, passive=True).message_count)
    except connection.channel_errors as error:
        if str(getattr(error, "reply_code", "")) != NOT_FOUND:
            raise
        return None


def timeout_options(connection: Any, seconds: float) -> dict[str, float]:
    """Return the transport's own socket timeouts, so that a connection without answers fails."""
    names = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "py-amqp": ("read_timeout", "write_timeout"),
    }
    return dict.fromkeys(names.get(connection.transport.driver_name, ()), seconds)


def _confirm_options(connection: Any) -> dict[str, bool]:
    """Return the option by which RabbitMQ confirms each message: without it, one that it drops looks published."""
    return {"confirm_publish": True} if connection.transport.driver_name == "py-amqp" else {}
