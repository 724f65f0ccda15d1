"""The pool `-P onejob` of a worker: one event loop runs the coroutines of all its tasks, threads the other tasks."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from inspect import iscoroutinefunction, unwrap
from typing import Any

from celery.concurrency.base import BasePool, apply_target

from onejob.celery.app_state import app_state_of
from onejob.celery.bodies import awaiting, set_awaiter
from onejob.celery.local_stacks import follow_context, set_stack_owner
from onejob.celery.run import draining
from onejob.celery.run_log import format_line
from onejob.celery.worker.coroutines.execution import Execution
from onejob.celery.worker.coroutines.feed import Feed, feed_of
from onejob.celery.worker.coroutines.watch import Hold, LoopWatch
from onejob.celery.worker.execute import Refusal
from onejob.celery.worker.run_end import apply_end, end_of
from onejob.concurrency.greenlets import call_in_bridge
from onejob.concurrency.loop_carrier import LoopCarrier
from onejob.errors import StaleTokenError, StoreError, describe
from onejob.jobs.run_log import HELD
from onejob.ledger.sweep import note_canvas_error
from onejob.observability.events import LOOP_HELD, JobEvent, Value, one_line
from onejob.stores.carrier import set_carrier

logger = logging.getLogger("onejob")
CeleryPool: Any = BasePool  # the published types know a part of the class only
SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread that waits for Python's lock gets it: those that carry requests are waited for."""
MAX_THREADS = 64
"""How many tasks that are no coroutines run at once, at most."""
STOP_SECONDS = 5.0
"""For how many seconds a pool that stops waits for an event loop that a body holds."""


class TaskPool(CeleryPool):  # type: ignore[misc]
    """A pool of Celery that runs up to `limit` tasks at once: coroutines in one event loop, others in threads."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for option, name in (("maxtasksperchild", "tasks"), ("max_memory_per_child", "memory")):
            if self.options.get(option):
                logger.critical(
                    "the worker cannot start: the pool onejob runs all tasks in its one process, which it cannot "
                    "replace as worker_max_%s_per_child says: leave that setting out", name,
                )  # fmt: skip
                raise SystemExit(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="onejob-loop", daemon=True)
        self._carrier = LoopCarrier(self._loop)
        self._feed: Feed | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._node = ""
        """The name of the worker, which events have."""
        self._waiting: deque[tuple[Execution, Callable[[], object]]] = deque()
        """The executions that wait for a free place, with what each calls."""
        self._running: set[Execution] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._seen_at = 0.0
        """When the event loop of a pool that stops last looked at what runs."""
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, self.limit), "onejob-task")
        self._coroutines: dict[str, bool] = {}
        """Whether the body of a task is a coroutine, by the task's name."""

    # --- the interface of Celery --------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Start the event loop."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.collect()
        gc.freeze()  # a collection that looks at all that was imported holds the loop for some 80 ms
        follow_context(self.app.tasks.values())
        for task in self.app.tasks.values():
            if iscoroutinefunction(unwrap(task.run)) and not hasattr(task, "_onejob"):
                task.run = awaiting(task, task.run)
                self._coroutines[task.name] = True
        self._thread.start()

    def on_apply(  # noqa: PLR0917 - Celery's signature
        self, target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        callback: Any = None, accept_callback: Any = None, timeout_callback: Any = None,
        soft_timeout: float | None = None, timeout: float | None = None, **_: Any,
    ) -> Execution:  # fmt: skip
        """Run a task as soon as there is a free place, and return its execution."""
        limits = soft_timeout or self.options.get("soft_timeout"), timeout or self.options.get("timeout")
        execution = Execution(self._loop, str(args[0]), limits, callback, timeout_callback, self._give_up)
        call = partial(apply_target, target, args, kwargs, execution.report, accept_callback)
        self._waiting.append((execution, call))
        self.wake()
        return execution

    def on_stop(self) -> None:
        """End the runs of jobs, wait for other tasks as Celery does, and end the event loop."""
        draining.set()  # a cold shutdown calls this method before it says so, and the feed must take nothing more
        ended = threading.Event()
        self._seen_at = time.monotonic()
        self._loop.call_soon_threadsafe(self._stop_when_idle, ended)
        while not ended.wait(0.1) and time.monotonic() - self._seen_at < STOP_SECONDS:
            pass
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
        self._node = one_line(str(worker.hostname))
        feed = self._feed = feed_of(worker, consumed)
        if feed is not None:
            self.call_soon(partial(self._start_feed, feed))

    def _start_feed(self, feed: Feed) -> None:
        self._feeding = self._loop.create_task(feed.run())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._watch = LoopWatch(self._loop, self._running, self._report_hold)
        self._watch.start()
        self._loop.run_forever()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.limit:
            self._begin(*self._waiting.popleft())
        if self._feed is not None:
            self._feed.wake()

    def _begin(self, execution: Execution, call: Callable[[], object]) -> None:
        self._running.add(execution)
        execution.start_timers()
        context = Context()
        context.run(_enter, execution)
        if self._is_coroutine(execution.name):
            context.run(set_carrier, self._carrier)
            task = execution.task = self._loop.create_task(call_in_bridge(call), context=context)
            task.add_done_callback(partial(self._end, execution))
        else:
            future = self._loop.run_in_executor(self._threads, partial(context.run, call))
            future.add_done_callback(partial(self._end, execution))

    def _end(self, execution: Execution, future: asyncio.Future[Any]) -> None:
        execution.end()
        self._leave(execution)
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("%s: its end could not be reported: %r", execution.name, error)

    def _leave(self, execution: Execution) -> None:
        """Give the place of an execution to another one."""
        self._running.discard(execution)
        self._fill()

    def _give_up(self, execution: Execution, error: BaseException) -> None:
        """End a run whose body goes on after it was interrupted: in the ledger, where its own writes are refused."""
        context = Context()
        context.run(set_carrier, self._carrier)
        ending = self._loop.create_task(
            call_in_bridge(partial(self._end_without_body, execution, error)), context=context
        )
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _end_without_body(self, execution: Execution, error: BaseException) -> None:
        run, reason = execution.run, describe(error)
        if run is not None:
            task: Any = self.app.tasks[execution.name]
            with suppress(StoreError, StaleTokenError):
                apply_end(end_of(error, has_ended=run.ended), task, run.job)
                ended = app_state_of(self.app).ledger.get_or_none(run.id)
                if ended is not None and ended.state.final and ended.canvas_pending:
                    note_canvas_error(app_state_of(self.app).ledger, ended, reason, wake_after=0.0)
        execution.report((1, Refusal(reason), 0.0))
        self._leave(execution)

    def _report_hold(self, hold: Hold) -> None:
        """Name the code that has held the loop: in an event, and in the log of its run."""
        holder = hold.holder
        run = None if holder is None else holder.run
        if run is not None:
            run.log.add(format_line(f"{HELD} {hold.seconds:.1f} s at {hold.place}", {}))
        elif holder is not None:
            logger.warning("%s %s %.1f s at %s", holder.name, HELD, hold.seconds, hold.place)
        fields: dict[str, Value] = {"node": self._node, "seconds": hold.seconds, "place": one_line(hold.place)}
        job_id, task = ("", "") if run is None else (one_line(run.id), one_line(run.job.task))
        app_state_of(self.app).ledger.emit(JobEvent(LOOP_HELD, job_id, task, fields))

    def _is_coroutine(self, name: str) -> bool:
        found = self._coroutines.get(name)
        if found is None:
            task = self.app.tasks.get(name)
            options = getattr(task, "_onejob", None)
            found = self._coroutines[name] = options is not None and options.is_coroutine
        return found

    def _stop_when_idle(self, ended: threading.Event) -> None:
        self._seen_at = time.monotonic()
        for execution in self._running:
            execution.release()
        is_feeding = self._feeding is not None and not self._feeding.done()
        if self._feed is not None:
            self._feed.wake()  # it ends, once what it has taken is received
        if self._running or is_feeding:
            self._loop.call_later(0.02, self._stop_when_idle, ended)
        else:
            ended.set()

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {"running": len(self._running), "waiting": len(self._waiting)}


def _enter(execution: Execution) -> None:
    """Make an execution that of this context."""
    set_awaiter(execution.await_body)
    set_stack_owner(execution)
