"""The idle connections to one Redis: a call has a connection that nobody else uses meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from redis import exceptions

from onejob.stores.redis.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis import ConnectionPool

CHECK_AFTER = 1.0
"""After how many idle seconds a connection is checked before it is used: the server may have closed it."""

# ReadOnlyError is included because after a failover a new connection may reach the new primary.
RETRYABLE = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError)
"""Errors that close the connection; a request that may be repeated is repeated on a new one."""
_BROKEN = (*RETRYABLE, OSError)


class Connections:
    """Connections with the options of a pool of redis-py. Safe to use from many threads, and after a fork."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[tuple[Connection, float]] = []
        _all.add(self)

    def execute(self, commands: Iterable[Sequence[str | bytes]], *, partial: bool = False) -> list[Any]:
        """Send commands in one round trip, and return their replies.

        Raises redis-py's exceptions. An error reply is raised when all replies have been read: the first one, and the
        other commands have run; if `partial`, it takes the place of its reply. Nothing is sent again.
        """
        connection = self._take()
        try:
            replies = connection.call(commands)
            _raise_first(replies, _BROKEN)
        except BaseException as error:
            # Also an exception from a signal handler: an unread reply must not answer the next request.
            connection.close()
            if isinstance(error, _BROKEN):
                self.close()  # the others have probably lost the server as well
            raise
        self._idle.append((connection, monotonic()))
        _raise_first(replies, exceptions.NoScriptError if partial else exceptions.RedisError)
        return replies

    def close(self) -> None:
        """Close the connections that are not in use. The next call opens another one."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):  # another thread has taken it
                self._idle.pop()[0].close()

    def abandon(self) -> None:
        """Drop the connections, unclosed: after a fork they are the parent's. Called in each forked child."""
        _abandoned.append(self._idle)
        self._idle = []

    def _take(self) -> Connection:
        """Return the connection that was used last, so that the others become idle; a new one if there is none."""
        with suppress(IndexError):
            connection, used_at = self._idle.pop()
            if monotonic() - used_at <= CHECK_AFTER or connection.is_usable():
                return connection
            connection.close()
        return Connection(self._pool)


def _raise_first(replies: list[Any], errors: type[Exception] | tuple[type[Exception], ...]) -> None:
    """Raise the first reply that is one of these errors."""
    for reply in replies:
        if isinstance(reply, errors):
            raise reply


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections.abandon()


_all: WeakSet[Connections] = WeakSet()
_abandoned: list[list[Any]] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
