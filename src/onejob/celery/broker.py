"""The connections of one app to its broker, with a timeout, and the errors that mean that the broker is away."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kombu.exceptions import LimitExceeded, OperationalError
from kombu.pools import ProducerPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

_OUTAGES = frozenset({
    "ConnectionError", "TimeoutError",
    "ReadOnlyError", "OutOfMemoryError", "ClusterDownError", "MasterDownError", "TryAgainError",
})  # fmt: skip
"""Names of exception classes: of the broker or the result backend, and of the states in which Redis refuses writes."""
_TRIES = {"max_retries": 1, "interval_start": 0}
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

    def is_outage(self, error: BaseException) -> bool:
        """Tell whether an exception means that the broker accepts no messages now, whatever the message."""
        if isinstance(error, OperationalError) and error.__cause__ is not None:  # as kombu wraps the transport's errors
            error = error.__cause__
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
    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        return (OperationalError, LimitExceeded, OSError, *self._app.connection_for_write().connection_errors)

    def _pool(self) -> ProducerPool:
        """Return this process's producers: a forked child must not use its parent's sockets."""
        pool = self._pools.get(os.getpid())
        if pool is None:
            connection = self._app.connection_for_write(connect_timeout=self._timeout)
            defaults = timeout_options(connection, self._timeout)
            connection.transport_options = defaults | (connection.transport_options or {}) | _TRIES
            limit = self._app.conf.broker_pool_limit or 10
            pool = self._pools[os.getpid()] = ProducerPool(connections=connection.Pool(limit), limit=limit)
        return pool


def timeout_options(connection: Any, seconds: float) -> dict[str, float]:
    """Return the transport's own socket timeouts, so that a connection without answers fails."""
    names = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "py-amqp": ("read_timeout", "write_timeout"),
    }
    return dict.fromkeys(names.get(connection.transport.driver_name, ()), seconds)
