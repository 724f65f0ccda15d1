"""A task that the pool of coroutines runs: its place in the event loop, its time limits, and what interrupts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from onejob.concurrency.greenlets import wait_for
from onejob.errors import describe

T = TypeVar("T")
_execution: ContextVar[Execution | None] = ContextVar("onejob_execution", default=None)
set_execution = _execution.set
"""Makes an execution that of a context."""
current_execution = _execution.get
"""Returns the execution of this context, or None."""


class Execution:
    """One call of a task by the pool. Only the thread of the event loop uses it, except where a method says so.

    `call` runs the task, and reports its end. `limits`: the soft and the hard time limit in seconds; None without one.
    `on_limit` is called with whether a limit is the soft one, and with its seconds.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, call: Callable[[], object],
        limits: tuple[float | None, float | None] = (None, None),
        on_limit: Callable[[bool, float], object] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.call = call
        self.task: asyncio.Task[Any] | None = None
        """The task of the event loop; None before the start, and where the task of Celery runs in a thread."""
        self.has_ended = False
        self._loop = loop
        self._limits = limits
        self._on_limit = on_limit
        self._timers: list[asyncio.TimerHandle] = []
        self._interruption: BaseException | None = None
        """What ends the body; None while it may go on."""
        self._is_in_body = False

    def start_timers(self) -> None:
        """Begin to count the time of the limits."""
        for seconds, error in zip(self._limits, (SoftTimeLimitExceeded, TimeLimitExceeded), strict=True):
            if seconds:
                self._timers.append(self._loop.call_later(seconds, self._exceed, error(seconds), seconds))

    def _exceed(self, error: Exception, seconds: float) -> None:
        is_soft = isinstance(error, SoftTimeLimitExceeded)
        if self._on_limit is not None and is_soft:
            self._on_limit(is_soft, seconds)
        self._interrupt(error)

    def end(self) -> None:
        """Stop the timers."""
        self.has_ended = True
        while self._timers:
            self._timers.pop().cancel()

    # --- the body -----------------------------------------------------------------------------------------------------

    def await_body(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine of the body. Raises its exception, or what has interrupted it."""
        if self._interruption is not None:
            coroutine.close()
            raise self._interruption
        self._is_in_body = True
        try:
            return wait_for(coroutine)
        except asyncio.CancelledError:
            if self._interruption is None:  # the body has canceled itself
                raise
            raise self._interruption from None
        finally:
            self._is_in_body = False
            if self.task is not None and self._interruption is not None:
                self.task.uncancel()

    def interrupt(self, error: BaseException) -> None:
        """End the body by this error: it gets a `CancelledError` where it awaits. Any thread may call this method."""
        self._loop.call_soon_threadsafe(self._interrupt, error)

    def _interrupt(self, error: BaseException) -> None:
        if self._interruption is not None or self.has_ended:
            return
        self._interruption = error
        if self._is_in_body and self.task is not None:
            self.task.cancel(describe(error))

    def terminate(self, _signal: object = None) -> None:
        """Do nothing: the request of a task interrupts it, and Celery calls this method of it as well."""
