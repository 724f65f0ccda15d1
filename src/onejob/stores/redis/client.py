"""The client of one Redis: pooled connections, bounded retries, safe to fork, driver errors translated to ours."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from redis import Redis, exceptions
from redis.backoff import EqualJitterBackoff
from redis.retry import Retry

from onejob.errors import StoreError, StoreUnavailableError
from onejob.stores.redis.address import RETRYABLE, place_of, pool_of
from onejob.stores.redis.operations import Batch, Call, Read
from onejob.stores.redis.scripts import arguments, load_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onejob.stores.redis.operations import Operation, Request

T = TypeVar("T")

_RETRY = Retry(EqualJitterBackoff(cap=0.5, base=0.05), 2, RETRYABLE)
"""Three attempts. They are safe because every script is idempotent."""

_UNAVAILABLE = (*RETRYABLE, exceptions.ClusterDownError, exceptions.TryAgainError, OSError)
_UNAVAILABLE_MESSAGES = ("BUSY Redis", "NOREPLICAS Not")
# For redis-py these are ConnectionErrors, but the server has answered, and nothing was written.
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
        """Run an operation: send each of its requests, and return its result. Raises `StoreError`."""
        reply = None
        while True:
            try:
                request = operation.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply = self._send(request)

    def close(self) -> None:
        """Close the idle connections now, and the others when they are released. The next operation opens new ones."""
        redis, self._redis = self._redis, None
        if redis is not None:
            redis.connection_pool.disconnect(inuse_connections=False)

    def abandon(self) -> None:
        """Drop the inherited pool in a forked child, unclosed: the parent uses its sockets; its locks may be held."""
        _abandoned.append(self._redis)
        self._redis = None

    def _send(self, request: Request) -> Any:
        redis = self._redis = self._redis or Redis.from_pool(pool_of(self._url))
        try:
            return _RETRY.call_with_retry(partial(self._attempt, redis, request), _ignore)
        except (exceptions.RedisError, OSError) as error:
            raise _translate_error(error, self._place) from error
        except BaseException:
            # An exception from a signal handler may leave an unread reply, which must not answer the next request.
            redis.connection_pool.disconnect(inuse_connections=False)
            raise

    def _attempt(self, redis: Redis, request: Request) -> Any:
        """Call scripts by digest; send their text to a server that does not have them (restarted, flushed)."""
        clock = {} if self._clock is None else {"clock": self._clock()}
        try:
            replies = _execute(redis, [*_commands(request, clock, by_digest=True)])
        except exceptions.NoScriptError:
            replies = _execute(redis, [*_commands(request, clock, by_digest=False)])
        return _group_replies(request, iter(replies))


def _commands(request: Request, clock: Mapping[str, float], *, by_digest: bool) -> Iterator[Sequence[str]]:
    match request:
        case Call():
            script = load_script(request.script)
            command = ("EVALSHA", script.sha) if by_digest else ("EVAL", script.text)
            yield *command, str(len(request.keys)), *request.keys, *arguments({**request.values, **clock})
        case Read():
            yield from request.commands
        case Batch():
            for each in request.requests:
                yield from _commands(each, clock, by_digest=by_digest)


def _execute(redis: Redis, commands: Sequence[Sequence[str]]) -> list[Any]:
    """Execute commands in one round trip, as strings: hiredis crashes if a signal interrupts formatting a number."""
    if len(commands) == 1:
        return [redis.execute_command(*commands[0])]  # type: ignore[no-untyped-call]
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
    return pipeline.execute()


def _group_replies(request: Request, replies: Iterator[Any]) -> Any:
    """Return the replies to the commands of a request, in the shape that its type documents."""
    match request:
        case Call():
            return next(replies)
        case Read():
            return [next(replies) for _ in request.commands]
        case Batch():
            return [_group_replies(each, replies) for each in request.requests]


def _ignore(error: Exception) -> None:
    """Do nothing after a failed attempt: redis-py has closed the connection."""


def _translate_error(error: Exception, place: str) -> StoreError:
    store = f"the Redis store at {place}"
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreError(
            f"{store} is over its maxmemory, and nothing was written: "
            "a ledger needs maxmemory-policy noeviction, and more memory or a shorter retention"
        )
    if "compiling script" in str(error):
        return StoreError(f"{store} is too old: onejob needs Redis 7.0 or later")
    if not isinstance(error, _REFUSED) and (
        isinstance(error, _UNAVAILABLE) or any(message in str(error) for message in _UNAVAILABLE_MESSAGES)
    ):
        return StoreUnavailableError(f"{store} did not answer: {error}")
    return StoreError(f"{store} refused: {error}")


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.abandon()


_clients: WeakSet[Client] = WeakSet()
_abandoned: list[Redis | None] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
