"""The pool `-P onejob` of a worker: one event loop runs the coroutines of all its tasks, threads the other tasks."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from inspect import iscoroutinefunction, unwrap
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool, apply_target

from onejob.celery.coroutines.bodies import awaiting
from onejob.celery.coroutines.execution import Execution, set_execution
from onejob.celery.local_stacks import follow_context, set_stack_owner
from onejob.concurrency.greenlets import call_in_bridge
from onejob.concurrency.loop_carrier import LoopCarrier
from onejob.errors import ConfigurationError
from onejob.stores.carrier import set_carrier

if TYPE_CHECKING:
    from onejob.celery.coroutines.feed import Feed

logger = logging.getLogger("onejob")
CeleryPool: Any = BasePool  # the published types know a part of the class only
SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread that waits for Python's lock gets it: those that carry requests are waited for."""
MAX_THREADS = 64
"""How many tasks that are no coroutines run at once, at most."""
STOP_SECONDS = 5.0
"""For how many seconds a pool that stops waits for the ends of its tasks."""


class TaskPool(CeleryPool):  # type: ignore[misc]
    """A pool of Celery that runs up to `limit` tasks at once: `async def` tasks in one event loop, others in threads."""

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in ("maxtasksperchild", "max_memory_per_child"):
            if self.options.get(name):
                raise ConfigurationError(
                    f"the pool onejob runs all tasks in one process, and cannot replace it: no {name}"
                )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="onejob-loop", daemon=True)
        self._carrier = LoopCarrier(self._loop)
        self._feed: Feed | None = None
        self._waiting: deque[Execution] = deque()
        """The executions that wait for a free place."""
        self._running: set[Execution] = set()
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, self.limit), "onejob-task")
        self._coroutines: dict[str, bool] = {}
        """Whether the body of a task is a coroutine, by the task's name."""

    # --- the interface of Celery --------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Start the event loop."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        follow_context(self.app.tasks.values())
        for task in self.app.tasks.values():
            if iscoroutinefunction(unwrap(task.run)) and not hasattr(task, "_onejob"):
                if hasattr(task, "_orig_run"):  # of `autoretry_for`: its wrapper catches what is awaited in it
                    task._orig_run = awaiting(task._orig_run)  # noqa: SLF001 - Celery's
                task.run = awaiting(task.run)
                self._coroutines[task.name] = True
        self._thread.start()

    def on_apply(
        self, target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        callback: Any = None, accept_callback: Any = None, timeout_callback: Any = None,
        soft_timeout: float | None = None, timeout: float | None = None, **_: Any,
    ) -> Execution:  # fmt: skip
        """Run a task as soon as there is a free place, and return its execution."""
        call = partial(apply_target, target, args, kwargs, callback, accept_callback)
        execution = Execution(self._loop, str(args[0]), call, (soft_timeout, timeout), timeout_callback)
        self._waiting.append(execution)
        self.wake()
        return execution

    def on_stop(self) -> None:
        """Wait for the tasks that run, and end the event loop."""
        ended = threading.Event()
        self._loop.call_soon_threadsafe(self._stop_when_idle, ended)
        ended.wait(STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def on_terminate(self) -> None:
        """End the event loop at once."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: the request of a task interrupts its execution."""

    def grow(self, n: int = 1) -> None:
        """Run more tasks at once."""
        self.limit += n
        self.wake()

    def shrink(self, n: int = 1) -> None:
        """Run fewer tasks at once; those that run go on."""
        self.limit = max(1, self.limit - n)

    # --- the event loop -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Start the executions that have a free place. Any thread may call this method."""
        if threading.get_ident() == self._thread.ident:
            self._fill()
        else:
            self._loop.call_soon_threadsafe(self._fill)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the event loop. Any thread may call this method."""
        self._loop.call_soon_threadsafe(function)

    def start_feed(self, worker: Any, consumed: Callable[[], Iterable[str]]) -> None:
        """Take the jobs of a worker from a feed, if its ledger and its broker have one."""
        from onejob.celery.coroutines.feed import feed_of  # which knows this class

        feed = self._feed = feed_of(worker, consumed)
        if feed is not None:
            self.call_soon(lambda: setattr(self, "_feeding", self._loop.create_task(feed.run())))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.limit:
            self._begin(self._waiting.popleft())

    def _begin(self, execution: Execution) -> None:
        self._running.add(execution)
        execution.start_timers()
        context = Context()
        context.run(set_execution, execution)
        context.run(set_stack_owner, execution)
        if self._is_coroutine(execution.name):
            context.run(set_carrier, self._carrier)
            task = execution.task = self._loop.create_task(call_in_bridge(execution.call), context=context)
            task.add_done_callback(partial(self._end, execution))
        else:
            future = self._loop.run_in_executor(self._threads, partial(context.run, execution.call))
            future.add_done_callback(partial(self._end, execution))

    def _end(self, execution: Execution, future: asyncio.Future[Any]) -> None:
        execution.end()
        self._running.discard(execution)
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("%s: its end could not be reported: %r", execution.name, error)
        self._fill()
        if self._feed is not None:
            self._feed.wake()

    def _is_coroutine(self, name: str) -> bool:
        found = self._coroutines.get(name)
        if found is None:
            task = self.app.tasks.get(name)
            options = getattr(task, "_onejob", None)
            found = self._coroutines[name] = options is not None and options.is_coroutine
        return found

    def _stop_when_idle(self, ended: threading.Event) -> None:
        if self._running:
            self._loop.call_later(0.02, self._stop_when_idle, ended)
        else:
            ended.set()

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {"running": len(self._running), "waiting": len(self._waiting)}
