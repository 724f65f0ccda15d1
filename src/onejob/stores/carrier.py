"""Carries requests to a store for code that shares its thread with other code, and must not block it.

A store asks `carrier()` before it blocks its thread. The answer is a carrier only within `carried`, in code that can
wait without its thread: a run in a worker of coroutines. So requests of one moment go to the store together, and code
that holds a lock of threads while it asks the store never waits otherwise than it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A result that may take long: `compute` is called in a thread of its own and does not delay its batch."""

    def __init__(self, compute: Callable[[], Result | Exception]) -> None:
        self.compute = compute


def or_error(function: Callable[[], T]) -> T | Exception:
    """Return the value or the exception of a function. A future takes each as its result, also StopIteration."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - the coroutine that has asked for the result raises it
        return error


class Carrier(Protocol):
    """Carries the requests of many callers to a store together, while their thread does other work."""

    def is_usable(self) -> bool:
        """Return whether the caller can wait for a request without blocking its thread."""

    def is_of_running_loop(self) -> bool:
        """Return whether the caller, a coroutine, can await `call`."""

    async def call(self, operation: Callable[[], T]) -> T:
        """Return the result of an operation for a coroutine; the requests of the operation are carried."""

    def carry(self, process: Callable[[Sequence[Any]], Sequence[Any]], request: Any) -> Any:
        """Return the result of a request, or raise the exception that is its result.

        `process` is called in another thread with the requests of several callers, and returns their results in order.
        An exception is raised in its caller, and a `Pending` is computed apart from the others.
        """

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""


_available: ContextVar[Carrier | None] = ContextVar("onejob_available_carrier", default=None)
_used: ContextVar[Carrier | None] = ContextVar("onejob_used_carrier", default=None)
set_carrier = _available.set
"""Makes a carrier available to the code of a context."""


def can_wait() -> bool:
    """Return whether this code can wait without blocking its thread."""
    available = _available.get()
    return available is not None and available.is_usable()


def carrier_of_coroutine() -> Carrier | None:
    """Return the carrier whose `call` a coroutine can await for operations of the store; None: it needs a thread."""
    available = _available.get()
    return available if available is not None and available.is_of_running_loop() else None


def carrier() -> Carrier | None:
    """Return the carrier of the requests of this code; None: each request blocks its thread."""
    return _used.get()


def carried(operation: Callable[[], T]) -> T:
    """Return the result of an operation, whose requests are carried if there is a carrier."""
    available = _available.get()
    if available is None or not available.is_usable():
        return operation()
    token = _used.set(available)
    try:
        return operation()
    finally:
        _used.reset(token)
