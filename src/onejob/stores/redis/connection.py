"""The connections to one Redis, by its URL: a call takes a connection for one packed write and one wait for replies.

redis-py opens connections (TLS, authentication) and names the errors; its slow layers around each command are left out.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ssl import SSLWantReadError, SSLWantWriteError
from time import monotonic
from types import BuiltinFunctionType
from typing import Any
from urllib.parse import unquote, urlsplit
from weakref import finalize

from hiredis import Reader, pack_command
from redis import ConnectionPool, SSLConnection, exceptions
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.retry import Retry

from onejob.errors import ConfigurationError
from onejob.stores.forks import abandon_in_children

CHECK_AFTER = 1.0
"""After how many idle seconds a connection is checked before it is used: the server may have closed it."""
SEND_SIZE = 65_536
"""How many bytes are sent at once: the server works on them while the next bytes are packed."""
RECEIVE_SIZE = 65_536
"""How many bytes are read at once."""
SPIN = 150e-6
"""For how many seconds a call polls for its reply before it sleeps.

To sleep and to be woken takes longer than a server nearby needs for its answer, and leaves cold caches. A connection
whose last reply took longer than `SPIN` sleeps at once.
"""
LATE = 500e-6
"""After how many seconds a yielded core comes back late, because a process other than the server used it."""
PAUSE = 0.1
"""For how many seconds after a late core a connection sleeps at once, so that it costs at most one turn of the
scheduler."""
# ReadOnlyError is included because after a failover a new connection may reach the new primary.
RETRYABLE = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError)
"""Errors that close the connection; a request that may be repeated is repeated on a new one."""
_BROKEN = (*RETRYABLE, OSError)
_WOULD_BLOCK = (BlockingIOError, SSLWantReadError, SSLWantWriteError)
_yield_core = getattr(os, "sched_yield", lambda: None)  # absent on macOS
DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 2.0,
    "socket_timeout": 5.0,
}
"""The default options of connections, which the query of a URL may override."""

_FIXED: dict[str, Any] = {
    "decode_responses": True,
    "encoding": "utf-8",
    # `Client` retries. redis-py would retry its handshake inside each of these retries.
    "retry": Retry(NoBackoff(), 0, RETRYABLE),
}


def pool_of(url: str) -> ConnectionPool:
    """Return the pool for `redis://`, `rediss://` or `unix://`. Raises `ConfigurationError`."""
    try:
        pool = ConnectionPool.from_url(url, **DEFAULTS)
        options = pool.connection_kwargs
        _check(url, options)
        # The URL of the store is often that of the broker, in Celery's spelling of two options.
        if isinstance(options.get("ssl_cert_reqs"), str):
            options["ssl_cert_reqs"] = options["ssl_cert_reqs"].lower().removeprefix("cert_")
        if "virtual_host" in options:
            options["db"] = int(options.pop("virtual_host").strip("/") or 0)
        options.update(_FIXED)
        pool.connection_class(**options)  # raises TypeError for an unknown option
    except (exceptions.RedisError, TypeError) as error:
        raise ConfigurationError(f"the URL of the Redis store has an invalid option: {error}") from None
    except ValueError as error:
        # Other messages may quote a part of the password, which an unencoded slash makes look like the port.
        is_safe = str(error).startswith(("Invalid value for", "Redis URL must"))
        reason = str(error) if is_safe else "are its port and database numbers, and is its password percent-encoded?"
        raise ConfigurationError(f"the URL of the Redis store is invalid: {reason}") from None
    return pool


def _check(url: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for options that redis-py ignores, or that it refuses only when it connects."""
    parts = urlsplit(url)
    number = "" if parts.scheme == "unix" else unquote(parts.path).strip("/")
    if number and not number.isdecimal():
        msg = "no number of a database"  # which redis-py would take for 0
        raise ValueError(msg)
    for name in DEFAULTS:
        if options[name] is not None and not options[name] > 0:
            raise ValueError(f"Invalid value for {name!r}")


def location_of(pool: ConnectionPool) -> str:
    """Return the server and the database, for messages."""
    options = pool.connection_kwargs
    host = options.get("host", "localhost")
    server = f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}"
    return f"{options.get('path', server)}/{options.get('db', 0)}"


def address_of(pool: ConnectionPool) -> str:
    """Return the location and the user, without secrets: a client can push messages to a broker of equal address."""
    options = pool.connection_kwargs
    user = "a credential provider" if options.get("credential_provider") else options.get("username") or "default"
    scheme = "rediss" if issubclass(pool.connection_class, SSLConnection) else "redis"
    return f"{scheme}://{user}@{location_of(pool)}"


class Connections:
    """Connections to one Redis, with options of a redis-py pool. Safe to use from many threads, and after a fork."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[tuple[Connection, float]] = []
        finalize(self, _close_all, self._idle).atexit = False
        abandon_in_children(self)

    def execute(self, commands: Iterable[Sequence[str | bytes]], *, partial: bool = False) -> list[Any]:
        """Send commands in one round trip, and return their replies.

        Raises redis-py's exceptions. The first error reply is raised when all replies have been read, and the other
        commands have run; if `partial`, each error takes the place of its reply. Nothing is sent again.
        """
        connection = self._take()
        try:
            replies = connection.call(commands)
            for reply in replies:
                if isinstance(reply, _BROKEN):
                    raise reply  # noqa: TRY301 - a call for each reply costs more
        except BaseException as error:
            # Also an exception from a signal handler: an unread reply must not answer the next request.
            connection.close()
            if isinstance(error, _BROKEN):
                self.close()  # the others have probably lost the server as well
            raise
        self._idle.append((connection, monotonic()))
        if not partial:
            for reply in replies:
                if isinstance(reply, exceptions.RedisError):
                    raise reply
        return replies

    def close(self) -> None:
        """Close the connections that are not in use. The next call opens another connection."""
        _close_all(self._idle)

    def abandon(self) -> object:
        """Drop the connections, unclosed: after a fork they are the parent's. Called in each forked child."""
        idle = [*self._idle]
        self._idle.clear()
        return idle

    def _take(self) -> Connection:
        """Return the idle connection that was used last, so that others stay idle; a new connection if none is idle."""
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return Connection(self._pool)
        if monotonic() - used_at <= CHECK_AFTER or connection.is_usable():
            return connection
        connection.close()
        return Connection(self._pool)


def _close_all(idle: list[tuple[Connection, float]]) -> None:
    """Close connections, also those of a store that is garbage and was not closed, before its sockets are garbage."""
    for _ in range(len(idle)):
        with suppress(IndexError):  # another thread has taken it
            idle.pop()[0].close()


class Connection:
    """An open connection with the options of a pool of redis-py. Raises redis-py's exceptions."""

    def __init__(self, pool: ConnectionPool) -> None:
        # With RESP3, and with its notifications of maintenance, a server sends more than replies.
        given = pool.connection_kwargs.items()
        options = {name: value for name, value in given if not name.startswith("maint_")} | {"protocol": 2}
        self._connection: Any = pool.connection_class(**options)
        self._connection.connect()
        self._socket = self._connection._sock  # noqa: SLF001 - no public name
        self._socket.settimeout(0.0)
        self._poll = _poll_of(self._socket)
        self._timeout: float | None = options.get("socket_timeout")
        encoding = options.get("encoding", "utf-8") if options.get("decode_responses") else None
        self._reader = Reader(
            protocolError=exceptions.InvalidResponse, replyError=DefaultParser.parse_error, encoding=encoding,
            notEnoughData=Ellipsis,
        )  # fmt: skip
        self._last_wait = 0.0
        self._sleeps_until = 0.0

    def call(self, commands: Iterable[Sequence[str | bytes]]) -> list[Any]:
        """Return the replies to commands, or error replies in place. All have to arrive within the `socket_timeout`."""
        deadline = None if self._timeout is None else monotonic() + self._timeout
        count, packed = 0, bytearray()
        for command in commands:
            count += 1
            packed += pack_command(tuple(command))  # type: ignore[arg-type]  # the stub of hiredis allows one word only
            if len(packed) >= SEND_SIZE:
                self._write(packed, deadline)
                packed = bytearray()
        if packed:
            self._write(packed, deadline)
        replies: list[Any] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is Ellipsis:
                self._reader.feed(self._receive(deadline))
            else:
                replies.append(reply)
        return replies

    def send(self, commands: Iterable[Sequence[str | bytes]]) -> None:
        """Send commands, whose replies `receive_available` returns."""
        for command in commands:
            self._write(bytearray(pack_command(tuple(command))), None)  # type: ignore[arg-type]  # as above

    def receive_available(self) -> list[Any]:
        """Return the replies that have arrived, without waiting; an error reply is an exception in its place."""
        with suppress(*_WOULD_BLOCK):
            while data := self._socket.recv(RECEIVE_SIZE):
                self._reader.feed(data)
            raise exceptions.ConnectionError("the server has closed the connection")
        replies: list[Any] = []
        while (reply := self._reader.gets()) is not Ellipsis:
            replies.append(reply)
        return replies

    def fileno(self) -> int:
        """Return the socket."""
        number: int = self._socket.fileno()
        return number

    def is_usable(self) -> bool:
        """Return whether the connection is open, and has nothing to read."""
        try:
            self._socket.recv(1)
        except OSError as error:
            return isinstance(error, _WOULD_BLOCK)
        return False

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _write(self, data: bytearray, deadline: float | None) -> None:
        try:
            sent = self._socket.send(data)
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            raise exceptions.ConnectionError(f"the connection was lost while a request was sent: {error}") from error
        if sent < len(data):
            self._sleep(self._socket.sendall, data[sent:], deadline)

    def _receive(self, deadline: float | None) -> bytes:
        started = now = monotonic()
        if self._last_wait < SPIN and self._sleeps_until <= now:
            while not self._poll(0) and now < started + SPIN:
                _yield_core()
                before, now = now, monotonic()
                if now - before > LATE:
                    self._sleeps_until = now + PAUSE
                    break
        try:
            data: bytes = self._socket.recv(RECEIVE_SIZE)
        except _WOULD_BLOCK:
            data = self._sleep(self._socket.recv, RECEIVE_SIZE, deadline)
        except OSError as error:
            raise exceptions.ConnectionError(f"the connection was lost before the reply: {error}") from error
        self._last_wait = monotonic() - started
        if not data:
            raise exceptions.ConnectionError("the server has closed the connection")
        return data

    def _sleep(self, operation: Any, argument: Any, deadline: float | None) -> Any:
        """Run an operation of the socket that waits, at most until the deadline."""
        try:
            self._socket.settimeout(None if deadline is None else max(deadline - monotonic(), 1e-3))
            result = operation(argument)
            self._socket.settimeout(0.0)
        except TimeoutError as error:
            raise exceptions.TimeoutError(f"no answer within {self._timeout} s") from error
        except OSError as error:
            raise exceptions.ConnectionError(f"the connection was lost: {error}") from error
        return result


def _poll_of(socket: Any) -> Callable[[float], Any]:
    """Return a function that tells whether a socket has something to read; for green threads it always says yes.

    gevent replaces the system's `poll`, and eventlet removes it: there, other threads can run only while a call sleeps.
    """
    system_poll = getattr(select, "poll", None)
    if not isinstance(system_poll, BuiltinFunctionType):
        return lambda _timeout: True
    poller = system_poll()
    poller.register(socket, select.POLLIN)
    poll: Callable[[float], Any] = poller.poll
    return poll
