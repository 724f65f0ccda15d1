"""The connection to one Redis: pooled, retried within bounds, alive after a fork, its errors in our words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from redis import ConnectionPool, Redis, exceptions
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.stores.redis.operations import Call, Read
from onejob.stores.redis.scripts import arguments, script

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.redis.operations import Operation

T = TypeVar("T")

DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 2.0,
    "socket_timeout": 5.0,
    "health_check_interval": 30,
    "max_connections": 2**31,
}
"""What the query of a URL may override."""

RETRIES = 2
"""Tries after the first one. They are safe: every script knows a request that it has answered."""

# READONLY is among them because after a failover a new connection may find the new primary.
_RETRIED = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError)
_UNAVAILABLE = (*_RETRIED, exceptions.ClusterDownError, exceptions.TryAgainError, OSError)
_UNAVAILABLE_CODES = ("BUSY ", "NOREPLICAS ")
# To redis-py these two are a ConnectionError; but the server did answer, and nothing was written.
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)


class Client:
    """Runs operations on the Redis at `url`. `clock` replaces the server's clock, for tests."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._url = url
        self._clock = clock
        self._redis: Redis | None = _connect(url)
        self._where = _where(self._redis.connection_pool)
        _clients.add(self)

    def run(self, operation: Operation[T]) -> T:
        """Do what an operation asks for, and return its answer."""
        redis = self._redis = self._redis or _connect(self._url)
        reply = None
        while True:
            try:
                request = operation.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                reply = self._call(redis, request) if isinstance(request, Call) else _read(redis, request)
            except (exceptions.RedisError, OSError) as error:
                raise _translated(error, self._where) from error

    def close(self) -> None:
        """Close the idle connections now, and those in use when they come back. The next operation opens another."""
        redis, self._redis = self._redis, None
        if redis is not None:
            redis.connection_pool.disconnect(inuse_connections=False)

    def _call(self, redis: Redis, call: Call) -> Any:
        """Call a script by its digest; a server that does not know it (restarted, flushed) is sent the text."""
        wanted = script(call.script)
        values = call.values if self._clock is None else {**call.values, "clock": self._clock()}
        keys_and_values = (*call.keys, *arguments(values))
        try:
            return redis.evalsha(wanted.sha, len(call.keys), *keys_and_values)
        except exceptions.NoScriptError:
            return redis.eval(wanted.text, len(call.keys), *keys_and_values)

    def forget(self) -> None:
        """Bury what a fork inherited: its sockets are the parent's, and a thread that died may hold its locks."""
        _buried.append(self._redis)
        self._redis = None


def _read(redis: Redis, read: Read) -> list[Any]:
    pipeline = redis.pipeline(transaction=True)
    for command in read.commands:
        pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
    return pipeline.execute()


def _connect(url: str) -> Redis:
    """Return a client that has not connected yet. Raises `ConfigurationError`."""
    try:
        pool = ConnectionPool.from_url(url, **DEFAULTS)
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES, _RETRIED)
        pool.connection_kwargs.update(protocol=2, decode_responses=True, encoding="utf-8", retry=retry)
        pool.connection_class(**pool.connection_kwargs)  # refuses an option it does not know
    except (exceptions.RedisError, TypeError, ValueError) as error:
        msg = f"the URL of the Redis store cannot work: {error}"
        raise ConfigurationError(msg) from error
    return Redis.from_pool(pool)


def _where(pool: ConnectionPool) -> str:
    """Name a Redis without its password."""
    options = pool.connection_kwargs
    host = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{options.get('path', host)}/{options.get('db', 0)}"


def _translated(error: Exception, where: str) -> StoreError:
    text = f"the Redis store at {where}"
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreError(
            f"{text} is over its maxmemory, and nothing was written: "
            "a ledger needs maxmemory-policy noeviction, and more memory or a shorter retention"
        )
    if isinstance(error, _REFUSED):
        return StoreError(f"{text} refused: {error}")
    if isinstance(error, _UNAVAILABLE) or str(error).startswith(_UNAVAILABLE_CODES):
        return StoreUnavailableError(f"{text} did not answer: {error}")
    return StoreError(f"{text} refused: {error}")


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.forget()


_clients: WeakSet[Client] = WeakSet()
_buried: list[Redis | None] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
