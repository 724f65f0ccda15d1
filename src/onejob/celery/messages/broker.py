"""The connections of one app to its broker, with a timeout; and which errors mean that the broker is away."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import unwrap
from types import FunctionType
from typing import Any

from amqp.exceptions import FrameSyntaxError
from celery import Celery
from celery.app.amqp import AMQP
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.messaging import Producer
from kombu.pools import ProducerPool

from onejob.errors import StoreRefusedError

_OUTAGES = frozenset({
    "ConnectionError", "TimeoutError",
    "ReadOnlyError", "OutOfMemoryError", "ClusterDownError", "MasterDownError", "TryAgainError", "MessageNacked",
})  # fmt: skip
"""Names of exception classes that mean an outage of a broker or result backend, or a state that refuses writes."""
_OWN_MODULES = frozenset({
    "celery.app.amqp", "celery.app.base", "celery.app.task", "celery.backends.base", "celery.backends.redis",
    "amqp.channel",
    "kombu.messaging", "kombu.transport.pyamqp", "kombu.transport.redis", "kombu.transport.virtual.base",
})  # fmt: skip
SCHEME = "onejob"
"""The scheme of the broker URL `onejob://`."""
NOT_FOUND = "404"
"""The reply code of the channel error for a queue that does not exist."""
TRIES = {"max_retries": 1, "interval_start": 0}
"""The options that limit how often kombu tries to connect, which is for ever by default."""
BROKER_TIMEOUT = 2.0
"""Seconds until a connection attempt to the broker fails."""
logger = logging.getLogger("onejob")


class Broker:
    """The broker of one app. `timeout`: seconds until an operation fails."""

    def __init__(self, app: Celery, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._pools: dict[tuple[int, bool], ProducerPool] = {}

    @contextmanager
    def producer(self, *, confirms: bool = False) -> Iterator[Any]:
        """Yield a producer with its own connection; with `confirms`, RabbitMQ confirms each publication."""
        with self._pool(confirms=confirms).acquire(block=True, timeout=self._timeout) as producer:
            yield producer

    def close(self) -> None:
        """Close this process's connections. The next message opens new connections."""
        for confirms in (False, True):
            pool = self._pools.pop((os.getpid(), confirms), None)
            if pool is not None:
                pool.connections.force_close_all()

    def is_own(self, producer: Any) -> bool:
        """Return whether a given producer sends to this broker: None does, and the producer of a group's members."""
        return producer is None or _address(producer.connection) == self._address

    def is_outage(self, error: BaseException) -> bool:
        """Return whether an exception means that the broker accepts no messages now, whatever the message."""
        error = _unwrapped(error)
        names = {base.__name__ for base in type(error).__mro__}
        if isinstance(error, KeyError):  # which kombu regards as a connection error of Redis
            return False
        if isinstance(error, FrameSyntaxError) and error.method_sig is None:  # of a message that cannot be written
            return False
        if not names.isdisjoint(_OUTAGES) or str(error).startswith("MISCONF"):
            return True
        if isinstance(error, StoreRefusedError):  # the ledger is the broker, and can never hold this message
            return False
        return isinstance(error, self._connection_errors) and not isinstance(error, self.channel_errors)

    @cached_property
    def channel_errors(self) -> tuple[type[BaseException], ...]:
        """The classes of errors that are about one message, or about an earlier message of the same channel."""
        return tuple(self._app.connection_for_write().channel_errors)

    @cached_property
    def _address(self) -> tuple[Any, ...]:
        return _address(self._app.connection_for_write())

    @cached_property
    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        return (OperationalError, LimitExceeded, OSError, *self._app.connection_for_write().connection_errors)

    def _pool(self, *, confirms: bool) -> ProducerPool:
        """Return this process's producers: a forked child must not use its parent's sockets."""
        key = (os.getpid(), confirms)
        pool = self._pools.get(key)
        if pool is None:
            connection: Any = self._app.connection_for_write(connect_timeout=self._timeout)
            set_timeouts(connection, self._timeout)
            connection.transport_options |= TRIES
            if connection.transport.driver_name == "py-amqp" and confirms:
                connection.transport_options["confirm_publish"] = True
            limit = self._app.conf.broker_pool_limit or 10
            pool = self._pools[key] = ProducerPool(connections=connection.Pool(limit), limit=limit)
        return pool


def is_reset(error: BaseException) -> bool:
    """Return whether an exception means that the connection was closed, as servers close idle connections."""
    return "ConnectionError" in {base.__name__ for base in type(_unwrapped(error)).__mro__}


def _unwrapped(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error, OperationalError) and error.__cause__ is not None else error


def _address(connection: Any) -> tuple[Any, ...]:
    return tuple(getattr(connection, name) for name in ("transport_cls", "hostname", "port", "userid", "virtual_host"))


def queue_length(connection: Any, name: str) -> int | None:
    """Return the number of messages in a queue, or None if there is no queue. Raises the transport's errors."""
    try:
        with connection.channel() as channel:  # which an unknown queue closes
            return int(channel.queue_declare(queue=name, passive=True).message_count)
    except connection.channel_errors as error:
        if str(getattr(error, "reply_code", "")) != NOT_FOUND:
            raise
        return None


def queue_lengths(app: Celery, names: Iterable[str]) -> dict[str, int | None]:
    """Return the number of messages in each queue; None where the broker cannot tell, or has no such queue."""
    lengths: dict[str, int | None] = dict.fromkeys(names)
    try:
        with connect_to_broker(app) as connection:
            for name in lengths:
                lengths[name] = queue_length(connection, name)
    except Exception as error:  # noqa: BLE001 - any transport's error: the figures are optional
        logger.info("the broker does not tell the lengths of its queues: %r", error)
    return lengths


@contextmanager
def connect_to_broker(app: Celery) -> Iterator[Any]:
    """Yield a connection to the broker. Raises the transport's error if there is none within `BROKER_TIMEOUT`."""
    with app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
        set_timeouts(connection, BROKER_TIMEOUT)
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=int(BROKER_TIMEOUT))
        yield connection


def set_timeouts(connection: Any, seconds: float) -> None:
    """Set the transport's socket timeouts, if the app sets none, so that a connection without answers fails."""
    names = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "py-amqp": ("read_timeout", "write_timeout"),
    }
    timeouts = dict.fromkeys(names.get(connection.transport.driver_name, ()), seconds)
    connection.transport_options = timeouts | (connection.transport_options or {})


def is_writable(app: Celery, transport: str, functions: Iterable[str]) -> bool:
    """Return whether onejob can write an app's messages by itself exactly as Celery and kombu would send them.

    `functions`: the sending functions of the channel of `transport` (a module). False if Celery sends events of
    messages, the result backend prepares for each (as `rpc`), or other code takes part: a subclass, a protocol,
    instrumentation. Code that only wraps `send_task` and `Producer.publish` takes part in the submission, see
    `celery/messages/context.py`.
    """
    own: Any = app.connection_for_write().transport
    amqp = app.amqp
    if (type(own).__module__, type(own).__name__) != (transport, "Transport"):
        return False
    if app.conf.task_send_sent_event or type(amqp) is not AMQP:
        return False
    try:
        prepare = app.backend.on_task_call
    except Exception:  # noqa: BLE001 - Celery raises it for each message that needs the result backend
        return False
    channel = getattr(own, "Channel", None) or own.Connection.Channel
    takes_part = (
        unwrap(app.send_task), amqp.as_task_v2, amqp.send_task_message, prepare, unwrap(Producer.publish),
        Producer._publish,  # noqa: SLF001 - kombu's
        *(getattr(channel, name) for name in functions),
    )  # fmt: skip
    return are_own(takes_part) and amqp.create_task_message == amqp.as_task_v2


def are_own(functions: Iterable[Any]) -> bool:
    """Return whether functions and methods belong to Celery, kombu and py-amqp, and no code takes their place."""
    plain = [getattr(each, "__func__", each) for each in functions]
    # A wrapper may have copied the name and the module of a function of Celery or kombu.
    return all(type(each) is FunctionType and each.__globals__["__name__"] in _OWN_MODULES for each in plain)
