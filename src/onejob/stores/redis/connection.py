"""Connections to one Redis: a call is one packed write and one read on a connection that nobody else uses meanwhile.

redis-py opens the connections (TLS, authentication, health checks) and parses the replies; its layers around each
command, which take longer than the server, are left out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from hiredis import pack_command
from redis import exceptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis import ConnectionPool

SEND_SIZE = 65_536
"""How many bytes are sent at once: the server works on them while the next ones are packed."""
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
        self._idle: list[tuple[Any, float]] = []
        _all.add(self)

    def execute(self, commands: Iterable[Sequence[str | bytes]]) -> list[Any]:
        """Send commands in one round trip, and return their replies.

        Raises redis-py's exceptions. An error reply is raised when all replies have been read: the first one, and the
        other commands have run. Nothing is sent again.
        """
        connection = self._take()
        try:
            count = _send(connection, commands)
            replies = [_read(connection) for _ in range(count)]
        except BaseException as error:
            # Also an exception from a signal handler: an unread reply must not answer the next request.
            connection.disconnect()
            if isinstance(error, _BROKEN):
                self.close()  # the others have probably lost the server as well
            raise
        refusal = next((reply for reply in replies if isinstance(reply, exceptions.ResponseError)), None)
        if isinstance(refusal, _BROKEN):
            connection.disconnect()
        self._idle.append((connection, monotonic()))
        if refusal is not None:
            raise refusal
        return replies

    def close(self) -> None:
        """Close the connections that are not in use. The next call opens another one."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):  # another thread has taken it
                self._idle.pop()[0].disconnect()

    def abandon(self) -> None:
        """Drop the connections, unclosed: after a fork they are the parent's. Called in each forked child."""
        _abandoned.append(self._idle)
        self._idle = []

    def _take(self) -> Any:
        try:
            connection, used_at = self._idle.pop()  # the latest one, so that the others become idle
        except IndexError:
            return self._pool.connection_class(**self._pool.connection_kwargs)
        if monotonic() - used_at > CHECK_AFTER and not _is_usable(connection):
            connection.disconnect()
        return connection


def _is_usable(connection: Any) -> bool:
    """Return whether an idle connection is open, and has nothing to read."""
    try:
        return not connection.can_read()
    except _BROKEN:
        return False


def _send(connection: Any, commands: Iterable[Sequence[str | bytes]]) -> int:
    """Send commands, and return how many they are."""
    count, sent, packed = 0, 0, bytearray()
    for command in commands:
        count += 1
        packed += pack_command(tuple(command))  # type: ignore[arg-type]  # the stub of hiredis allows one word only
        if len(packed) >= SEND_SIZE:
            # Only the first write may check the health of the connection, which sends a PING and reads the reply.
            connection.send_packed_command([packed], check_health=not sent)
            sent, packed = count, bytearray()
    if packed:
        connection.send_packed_command([packed], check_health=not sent)
    return count


def _read(connection: Any) -> Any:
    """Return the next reply, also if it is an error: the replies to the further commands are to be read as well."""
    try:
        return connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections.abandon()


_all: WeakSet[Connections] = WeakSet()
_abandoned: list[list[Any]] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
