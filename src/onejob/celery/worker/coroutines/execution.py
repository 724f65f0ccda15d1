"""A task that the pool of coroutines runs: its place in the event loop, its time limits, and what interrupts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from celery.exceptions import Ignore, SoftTimeLimitExceeded

from onejob.celery.bodies import hard_limit
from onejob.celery.local_stacks import owner_in
from onejob.celery.run import Run, current_run_or_none
from onejob.concurrency.greenlets import wait_for
from onejob.errors import JobReleased, describe

T = TypeVar("T")
logger = logging.getLogger("onejob")
GRACE = 5.0
"""For how many seconds a body may go on after it was interrupted: to close what it has opened."""


class Execution:
    """One call of a task by the pool. Only the thread of the event loop uses it, except where a method says so.

    `limits`: the soft and the hard time limit in seconds; None without one. `on_end` and
    `on_soft_limit` are the functions of Celery's request.
    `give_up` is called for a body that goes on, `GRACE` seconds after what has interrupted it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, limits: tuple[float | None, float | None],
        on_end: Callable[[Any], object], on_soft_limit: Callable[[bool, float], object],
        give_up: Callable[[Execution, BaseException], object],
    ) -> None:  # fmt: skip
        self.name = name
        """The name of the task of Celery."""
        self.task: asyncio.Task[Any] | None = None
        """The task of the event loop; None before the start, and where the task of Celery runs in a thread."""
        self.run: Run | None = None
        """The run of the job; None before its body, and for a task that is no job."""
        self._loop = loop
        self._limits = limits
        self._on_end = on_end
        self._on_soft_limit = on_soft_limit
        self._give_up = give_up
        self._timers: list[asyncio.TimerHandle] = []
        self._interruption: BaseException | None = None
        """The error that ends the body; None while the body may go on."""
        self._is_in_body = False
        self._has_ended = False

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task of the event loop is that of this execution, or one that its body has created."""
        if task is None or task is self.task:
            return task is not None
        context = getattr(task, "get_context", lambda: None)()  # from Python 3.12 on
        return context is not None and owner_in(context) is self

    def start_timers(self) -> None:
        """Begin to count the time of the limits."""
        soft, hard = self._limits
        if soft:
            self._timers.append(self._loop.call_later(soft, self._exceed_soft, soft))
        if hard:
            self._timers.append(self._loop.call_later(hard, self._interrupt, hard_limit(hard)))

    def _exceed_soft(self, seconds: float) -> None:
        self._on_soft_limit(True, seconds)  # noqa: FBT003 - Celery's signature; it logs the limit
        self._interrupt(SoftTimeLimitExceeded(seconds))

    def report(self, result: Any) -> None:
        """Report the end to Celery's request, once: a body that was given up may end later."""
        if not self._has_ended:
            self.end()
            self._on_end(result)

    def end(self) -> None:
        """Stop the timers."""
        self._has_ended = True
        while self._timers:
            self._timers.pop().cancel()

    # --- the body -----------------------------------------------------------------------------------------------------

    def await_body(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine of the body. Raises its exception, or what has interrupted it."""
        if self._interruption is not None:
            coroutine.close()
            raise self._interruption
        self.run, self._is_in_body = current_run_or_none(), True
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

    def release(self) -> None:
        """End the body of a job since its worker shuts down; do nothing for a task that is no job."""
        if self.run is not None:
            self._interrupt(JobReleased(self.run.id))

    def _interrupt(self, error: BaseException) -> None:
        if self._interruption is not None or self._has_ended:
            return
        self._interruption = error
        if self._is_in_body:
            self._cancel()

    def _cancel(self) -> None:
        """Raise `CancelledError` in the body; once more after a while, if the body goes on."""
        if not self._is_in_body or self.task is None or self._interruption is None:
            return
        self.task.cancel(describe(self._interruption))
        self._loop.call_later(GRACE, self._insist)

    def _insist(self) -> None:
        if self._is_in_body and self._interruption is not None:
            if not self._has_ended:
                logger.warning(
                    "%s goes on after %s: it is ended without its body", self.name, describe(self._interruption)
                )
                self._give_up(self, self._interruption)
            self._cancel()

    def terminate(self, _signal: object = None) -> None:
        """End the body of a task that is no job, as Celery's request asks; that of a job has interrupted it before."""
        self.interrupt(Ignore("terminated on request"))
