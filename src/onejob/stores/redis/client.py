"""The client of one Redis: bounded retries, and driver errors translated to ours."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

from redis import exceptions
from redis.backoff import EqualJitterBackoff

from onejob.errors import StoreError, StoreRefusedError, StoreUnavailableError
from onejob.stores.redis.address import place_of, pool_of, push_place_of
from onejob.stores.redis.connections import RETRYABLE, Connections
from onejob.stores.redis.operations import Batch, Call, Read
from onejob.stores.redis.scripts import load_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from onejob.stores.redis.operations import Operation, Request

T = TypeVar("T")

ATTEMPTS = 3
"""How often a request is sent at most. It may be repeated because every script is idempotent."""
_BACKOFF = EqualJitterBackoff(cap=0.5, base=0.05)

_UNAVAILABLE = (*RETRYABLE, exceptions.ClusterDownError, exceptions.TryAgainError, OSError)
_UNAVAILABLE_MESSAGES = ("BUSY Redis", "MISCONF ", "NOREPLICAS Not")
_REFUSED_WRITE = re.compile("WRONGTYPE |Protocol error|(?![A-Z]+ ).*user_script")
"""The replies that concern the keys and values of one command, not the state of the server (`CODE ...`)."""
# For redis-py these are ConnectionErrors, but the server has answered, and nothing was written.
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)


class Client:
    """Runs operations on the Redis at `url`. `clock` replaces the server's clock, for tests."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        pool = pool_of(url)
        self.place = place_of(pool)
        self.push_place = push_place_of(pool)
        self._connections = Connections(pool)
        self._clock = clock

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
        """Close the idle connections now. The next operation opens new ones."""
        self._connections.close()

    def _send(self, request: Request) -> Any:
        try:
            return self._attempt(request)
        except (exceptions.RedisError, OSError) as error:
            raise _translate_error(error, self.place) from error

    def _attempt(self, request: Request, number: int = 1) -> Any:
        try:
            return self._execute(request)
        except RETRYABLE:
            if number == ATTEMPTS:
                raise
        time.sleep(_BACKOFF.compute(number))
        return self._attempt(request, number + 1)

    def _execute(self, request: Request) -> Any:
        """Call scripts by digest; send their text to a server that does not have them (restarted, flushed)."""
        clock = "" if self._clock is None else str(self._clock())
        partial = isinstance(request, Batch) and request.partial
        try:
            replies = self._connections.execute(commands_of(request, clock), partial=partial)
        except exceptions.NoScriptError:
            replies = self._connections.execute(commands_of(request, clock, by_digest=False), partial=partial)
        if partial:
            replies = [_translate_error(each, self.place) if isinstance(each, Exception) else each for each in replies]
        return _group_replies(request, iter(replies))


def commands_of(
    request: Request | Callable[[], Call], clock: str = "", *, by_digest: bool = True
) -> Iterable[Sequence[str | bytes]]:
    """Return the commands of a request. `clock` replaces the server's, for tests; scripts go by digest or as text."""
    match request:
        case Call():
            script = load_script(request.script)
            command = ("EVALSHA", script.sha) if by_digest else ("EVAL", script.text)
            return ((*command, str(len(request.keys)), *request.keys, clock, *request.arguments),)
        case Read():
            return request.commands
        case Batch():  # each is built when the one before has been sent
            return (command for each in request.requests for command in commands_of(each, clock, by_digest=by_digest))
        case _:
            return commands_of(request(), clock, by_digest=by_digest)


def _group_replies(request: Request | Callable[[], Call], replies: Iterator[Any]) -> Any:
    """Return the replies to the commands of a request, in the shape that its type documents."""
    match request:
        case Read():
            return [next(replies) for _ in request.commands]
        case Batch():
            return [_group_replies(each, replies) for each in request.requests]
        case _:
            return next(replies)


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
    refused = StoreRefusedError if _REFUSED_WRITE.match(str(error)) else StoreError
    return refused(f"{store} refused: {error}")
