"""Reads jobs and waits for them in coroutines: all waits of one event loop share their reads, which run in threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, TypeAlias, TypeVar

from celery import Celery, states
from celery.exceptions import TimeoutError as CeleryTimeoutError

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import REPLACED
from onejob.celery.results.timeouts import obstacle_to, timeout_text
from onejob.concurrency.batching import Batcher
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger
from onejob.stores.carrier import or_error
from onejob.stores.protocol import Channel

logger = logging.getLogger("onejob")
T = TypeVar("T")
Meta: TypeAlias = dict[str, Any]
"""A job's state and result as Celery's result backends return them."""
REREAD_INTERVAL = 5.0
"""Seconds after which a waiting coroutine reads its job itself, to get the error of a store that is away."""
OBSTACLE_PATIENCE = 1.0
"""Seconds at most for which a timeout waits for the reason why its job is stuck, before its message is made."""
ELSEWHERE_INTERVAL = 0.5
"""Seconds between two reads of a result that is not in the ledger."""
MAX_THREADS = 32
READ_LIMIT = 100
"""How many jobs are read at once."""


class LoopReader:
    """The batches, threads and watcher by which the coroutines of one event loop read the jobs of one app."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.jobs: Batcher[str, JobRow | None] = Batcher(self._read_jobs)
        self._watcher: Watcher | None = None
        self._threads = ThreadPoolExecutor(MAX_THREADS, "onejob-async")

    @property
    def watcher(self) -> Watcher:
        """The watcher of changes of jobs in the app's ledger, which an earlier read has opened."""
        ledger = app_state_of(self.app).ledger
        if self._watcher is None or self._watcher.ledger is not ledger:
            self._watcher = Watcher(ledger)
        return self._watcher

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, in the coroutine's context; the call ends also if the coroutine is canceled."""
        call = partial(copy_context().run, function)
        result = await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, or_error, call))
        if isinstance(result, Exception):
            raise result
        return result

    async def run_at_most(self, seconds: float, function: Callable[[], T], otherwise: T) -> T:
        """Call a function as `run` does, and return its result, or another value if it takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.run(function)
        return otherwise

    def _read_jobs(self, job_ids: Sequence[str]) -> list[JobRow | None]:
        found = app_state_of(self.app).ledger.store.get_many(job_ids)
        return [found.get(job_id) for job_id in job_ids]


def reader_of(app: Celery) -> LoopReader:
    """Return the reader of the running event loop."""
    return app_state_of(app).for_loop(LoopReader)


async def read_job(app: Celery, job_id: str) -> JobRow:
    """Return a job. Raises `JobNotFoundError`."""
    reader = reader_of(app)
    job = await reader.jobs.process(job_id)
    return await reader.run(lambda: app_state_of(app).ledger.get(job_id)) if job is None else job


async def wait_for_end(
    app: Celery, job_id: str, meta_of: Callable[[JobRow, Celery], Meta], read_elsewhere: Callable[[], Meta],
    timeout: float | None, submitted: JobRow | None = None,  # noqa: ASYNC109 - the message has it, as that of `get`
) -> Meta:  # fmt: skip
    """Return the result of a job, or of a task that is no job, once it has ended. Raises Celery's `TimeoutError`.

    `meta_of` returns the result of a job, `read_elsewhere` the result of a task without a job. `submitted`: the job
    as a submission has returned it, which saves a read.
    """
    reader = reader_of(app)

    async def read_meta(job: JobRow | None) -> Meta:
        return await reader.run(read_elsewhere) if job is None or job.reason == REPLACED else meta_of(job, app)

    job = submitted or await reader.jobs.process(job_id)
    meta = await read_meta(job)
    scope = asyncio.timeout(timeout)
    try:
        async with scope:
            while meta["status"] not in states.READY_STATES:
                job = await _wait_for_change(reader, job_id, job)
                meta = await read_meta(job)
    except TimeoutError:
        if not scope.expired():
            raise
        obstacle = await reader.run_at_most(OBSTACLE_PATIENCE, partial(obstacle_to, app, job_id), "")
        raise CeleryTimeoutError(timeout_text(job_id, meta["status"], timeout or 0.0, obstacle)) from None
    return meta


async def _wait_for_change(reader: LoopReader, job_id: str, job: JobRow | None) -> JobRow | None:
    """Wait until a job has ended, or should be read again, and return it without its arguments."""
    if job is None or job.reason == REPLACED:
        await asyncio.sleep(ELSEWHERE_INTERVAL)
        return await reader.jobs.process(job_id)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REREAD_INTERVAL
    async with reader.watcher.watch(job) as watch:
        while watch.job is not None and not watch.job.state.final and loop.time() < deadline:
            await watch.wait_for_change(deadline - loop.time())
        if watch.job is not None and watch.job.state.final:
            return watch.job
    return await reader.jobs.process(job_id)


# --- changes of jobs: one watcher per event loop reads the watched jobs in batches -----------------------------------


class Watch:
    """The last known version of a watched job; None once it has been deleted."""

    def __init__(self, job: JobRow) -> None:
        self.job: JobRow | None = job
        self.waiters = 0
        self.unsubscribe: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait until the job changes, for at most so many seconds; return whether it has changed."""
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._changed.wait(), seconds)
        return False

    def update(self, job: JobRow | None) -> None:
        """Set the job, and notify the waiters if it has changed."""
        if job != self.job:
            self.job = job
            self.notify()

    def notify(self) -> None:
        """Wake all waiters."""
        self._changed.set()
        self._changed = asyncio.Event()


class Watcher:
    """Reads watched jobs, in one thread: each job when its end is signaled, all every `interval` seconds (None: 1).

    Reading takes a fifth of the time at most, however many jobs are watched; the ends come first. Once `closing` is
    set, all waiters are woken, and should stop waiting.
    """

    def __init__(self, ledger: Ledger, interval: float | None = None, closing: Event | None = None) -> None:
        self.ledger = ledger
        self.watches: dict[str, Watch] = {}
        self._closing = closing
        backstop = ledger.store.signals.interval
        self._interval = backstop if interval is None else min(interval, backstop)
        self._reader: asyncio.Task[None] | None = None
        self._signaled: deque[str] = deque()
        """The jobs to read at once. The thread that listens appends to it."""
        self._is_signaled = asyncio.Event()
        self._is_woken = False
        """Whether the loop will look at the signaled jobs. The thread that listens sets it."""
        self._reads_all_at = 0.0
        self._reading = asyncio.Lock()
        """The lock that a read holds, so that no later read is overtaken."""

    @asynccontextmanager
    async def watch(self, job: JobRow) -> AsyncIterator[Watch]:
        """Watch a job, whose version the caller has read, for the duration of the context."""
        watch = self.watches.get(job.id) or self._add(job)
        watch.waiters += 1
        if self._reader is None or self._reader.done():
            self._reads_all_at = asyncio.get_running_loop().time() + self._interval
            self._reader = asyncio.create_task(self._read())
        try:
            if watch.job != _without_message(job):  # one of the two is older
                await self._update([job.id])
            yield watch
        finally:
            watch.waiters -= 1
            if not watch.waiters:
                del self.watches[job.id]
                watch.unsubscribe()

    def _add(self, job: JobRow) -> Watch:
        watch = self.watches[job.id] = Watch(_without_message(job))
        if not job.state.final:
            wake = partial(self._signal, asyncio.get_running_loop(), job.id)
            watch.unsubscribe = self.ledger.store.signals.subscribe(Channel.END, job.id, wake)
            wake("")  # it may have ended since it was read
        return watch

    def _signal(self, loop: asyncio.AbstractEventLoop, job_id: str, _payload: str) -> None:
        self._signaled.append(job_id)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._is_signaled.set)

    async def _read(self) -> None:
        try:
            while self.watches:
                await self._read_next()
        finally:  # neither may keep a loop that is closed then
            self._reader, self._is_signaled, self._is_woken = None, asyncio.Event(), False
            self._reading = asyncio.Lock()

    async def _read_next(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_signaled.wait(), max(0.0, self._reads_all_at - loop.time()))
        if self._closing is not None and self._closing.is_set():
            for watch in self.watches.values():
                watch.notify()
        self._is_signaled.clear()
        self._is_woken = False
        signaled = dict.fromkeys(self._signaled.popleft() for _ in range(len(self._signaled)))
        await self._update([job_id for job_id in signaled if job_id in self.watches])
        if (started := loop.time()) >= self._reads_all_at:
            await self._update(list(self.watches))
            self._reads_all_at = loop.time() + max(self._interval, 4 * (loop.time() - started))

    async def _update(self, job_ids: Sequence[str]) -> None:
        for start in range(0, len(job_ids), READ_LIMIT):
            async with self._reading:
                try:
                    jobs = await asyncio.to_thread(self._read_jobs, job_ids[start : start + READ_LIMIT])
                except Exception as error:  # noqa: BLE001 - the waiters keep waiting, so the reader must go on
                    logger.warning("the watched jobs could not be read: %r", error)
                    return
                for job_id, job in jobs.items():
                    if job_id in self.watches:
                        self.watches[job_id].update(job)

    def _read_jobs(self, job_ids: Sequence[str]) -> dict[str, JobRow | None]:
        found = self.ledger.store.get_awaited(job_ids)
        return {job_id: _without_message(found[job_id]) if job_id in found else None for job_id in job_ids}


def _without_message(job: JobRow) -> JobRow:
    """Return a job without its arguments and options, which no view shows, so that a watch does not hold them."""
    return replace(job, payload="", options="")
