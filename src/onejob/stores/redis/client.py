"""The connection to one Redis: pooled, retried within bounds, alive after a fork, its errors in our words."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from redis import Redis, exceptions
from redis.backoff import EqualJitterBackoff
from redis.retry import Retry

from onejob.errors import StoreError, StoreUnavailableError
from onejob.stores.redis.address import SPENT, place_of, pool_of
from onejob.stores.redis.operations import Call, Read, Together
from onejob.stores.redis.scripts import arguments, script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onejob.stores.redis.operations import Operation, Request

T = TypeVar("T")

_RETRY = Retry(EqualJitterBackoff(cap=0.5, base=0.05), 2, SPENT)
"""Three tries. They are safe: every script knows a request that it has answered."""

_UNAVAILABLE = (*SPENT, exceptions.ClusterDownError, exceptions.TryAgainError, OSError)
_UNAVAILABLE_TEXTS = ("BUSY Redis", "NOREPLICAS Not")
# To redis-py these two are a ConnectionError; but the server did answer, and nothing was written.
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)


class Client:
    """Runs operations on the Redis at `url`. `clock` replaces the server's clock, for tests."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._url = url
        self._clock = clock
        self._place = place_of(pool_of(url))
        self._redis: Redis | None = None
        _clients.add(self)

    def run(self, operation: Operation[T]) -> T:
        """Do what an operation asks for, and return its answer."""
        reply = None
        while True:
            try:
                request = operation.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply = self._reply(request)

    def close(self) -> None:
        """Close the idle connections now, and those in use when they come back. The next operation opens others."""
        redis, self._redis = self._redis, None
        if redis is not None:
            redis.connection_pool.disconnect(inuse_connections=False)

    def forget(self) -> None:
        """Bury what a fork inherited: its sockets are the parent's, and a thread that is gone may hold its locks."""
        _buried.append(self._redis)
        self._redis = None

    def _reply(self, request: Request) -> Any:
        redis = self._redis = self._redis or Redis.from_pool(pool_of(self._url))
        try:
            return _RETRY.call_with_retry(partial(self._ask, redis, request), _ignore)
        except (exceptions.RedisError, OSError) as error:
            raise _translated(error, self._place) from error
        except BaseException:
            # A signal's exception may leave a connection with its reply still to come: it must not answer the next one.
            redis.connection_pool.disconnect(inuse_connections=False)
            raise

    def _ask(self, redis: Redis, request: Request) -> Any:
        """Call scripts by their digests; a server that does not know them (restarted, flushed) is sent the texts."""
        clock = {} if self._clock is None else {"clock": self._clock()}
        try:
            replies = _said(redis, [*_commands(request, clock, by_digest=True)])
        except exceptions.NoScriptError:
            replies = _said(redis, [*_commands(request, clock, by_digest=False)])
        return _arranged(request, iter(replies))


def _commands(request: Request, clock: Mapping[str, float], *, by_digest: bool) -> Iterator[Sequence[str]]:
    match request:
        case Call():
            wanted = script(request.script)
            how = ("EVALSHA", wanted.sha) if by_digest else ("EVAL", wanted.text)
            yield *how, str(len(request.keys)), *request.keys, *arguments({**request.values, **clock})
        case Read():
            yield from request.commands
        case Together():
            for each in request.requests:
                yield from _commands(each, clock, by_digest=by_digest)


def _said(redis: Redis, commands: Sequence[Sequence[str]]) -> list[Any]:
    """Say commands at once, in texts only: hiredis crashes when a signal's exception finds it formatting a number."""
    if len(commands) == 1:
        return [redis.execute_command(*commands[0])]  # type: ignore[no-untyped-call]
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
    return pipeline.execute()


def _arranged(request: Request, replies: Iterator[Any]) -> Any:
    """Give a request the replies to its commands, as it wants them."""
    match request:
        case Call():
            return next(replies)
        case Read():
            return [next(replies) for _ in request.commands]
        case Together():
            return [_arranged(each, replies) for each in request.requests]


def _ignore(error: Exception) -> None:
    """Let a failed try pass: redis-py has closed its connection."""


def _translated(error: Exception, place: str) -> StoreError:
    text = f"the Redis store at {place}"
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreError(
            f"{text} is over its maxmemory, and nothing was written: "
            "a ledger needs maxmemory-policy noeviction, and more memory or a shorter retention"
        )
    if "compiling script" in str(error):
        return StoreError(f"{text} is too old: onejob needs Redis 7.0 or later")
    if not isinstance(error, _REFUSED) and (
        isinstance(error, _UNAVAILABLE) or any(known in str(error) for known in _UNAVAILABLE_TEXTS)
    ):
        return StoreUnavailableError(f"{text} did not answer: {error}")
    return StoreError(f"{text} refused: {error}")


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.forget()


_clients: WeakSet[Client] = WeakSet()
_buried: list[Redis | None] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
