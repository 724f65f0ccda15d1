"""Submitting and waiting in coroutines: what one event loop submits and reads at once is batched, in threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from celery import states
from celery.exceptions import TimeoutError as CeleryTimeoutError

from onejob.celery.app_state import app_state_of
from onejob.celery.batching import Batcher, Pending, or_error
from onejob.celery.call import Call, Prepared, checked_arguments, prepare
from onejob.celery.current_job import current_job_or_none
from onejob.celery.payload import REPLACED
from onejob.celery.result import AsyncResult, meta_of
from onejob.celery.submit import admit, answer
from onejob.celery.task import Task
from onejob.errors import StoreBusyError
from onejob.jobs.model import Admission
from onejob.observability import tracing
from onejob.stores.signals import Channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextvars import Context
    from threading import Event

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.observability.tracing import SubmissionSpan

logger = logging.getLogger("onejob")
T = TypeVar("T")
Item = TypeVar("Item")
Reply = TypeVar("Reply")
ALONE = frozenset({"session", "producer", "task_id"})
"""Options of `apply_async` with which a call is submitted alone."""
Meta: TypeAlias = dict[str, Any]
"""A job's state and result as Celery's result backends return them."""
REREAD_INTERVAL = 5.0
"""Seconds after which a waiting coroutine reads its job itself, so that it gets the error of a store that is away."""
ELSEWHERE_INTERVAL = 0.5
"""Seconds between two reads of a result that is not in the ledger."""
MAX_THREADS = 32
READ_LIMIT = 100
"""How many jobs are read at once."""


class LoopReader:
    """What the coroutines of one event loop share for reading the jobs of one app."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.jobs: Batcher[str, Job | None] = Batcher(self._read_jobs)
        self._watcher: Watcher | None = None
        self._threads = ThreadPoolExecutor(MAX_THREADS, "onejob-async")

    @property
    def watcher(self) -> Watcher:
        """What waits for changes of jobs in the ledger, which an earlier read has opened."""
        ledger = app_state_of(self.app).ledger
        if self._watcher is None or self._watcher.ledger is not ledger:
            self._watcher = Watcher(ledger)
        return self._watcher

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, in the context of the coroutine; it ends also if the coroutine is canceled."""
        call = partial(copy_context().run, function)
        result = await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, or_error, call))
        if isinstance(result, Exception):
            raise result
        return result

    def _read_jobs(self, job_ids: Sequence[str]) -> list[Job | None]:
        found = app_state_of(self.app).ledger.store.get_many(job_ids)
        return [found.get(job_id) for job_id in job_ids]


def reader_of(app: Celery) -> LoopReader:
    """Return the reader of the running event loop."""
    return app_state_of(app).for_loop(LoopReader)


async def read_job(app: Celery, job_id: str) -> Job:
    """Return a job. Raises `JobNotFoundError`."""
    reader = reader_of(app)
    job = await reader.jobs.process(job_id)
    return await reader.run(lambda: app_state_of(app).ledger.get(job_id)) if job is None else job


async def wait_for_end(
    app: Celery,
    job_id: str,
    read_elsewhere: Callable[[], Meta],
    timeout: float | None,  # noqa: ASYNC109 - the message has it, as that of `get`
    submitted: Job | None = None,
) -> Meta:
    """Return the result of a job once it has ended, or of one that is elsewhere. Raises Celery's `TimeoutError`.

    `submitted`: the job as a submission has returned it, which saves a read.
    """
    reader = reader_of(app)

    async def read_meta(job: Job | None) -> Meta:
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
        raise CeleryTimeoutError(f"job {job_id} is {meta['status']} after {timeout:g} s") from None
    return meta


async def _wait_for_change(reader: LoopReader, job_id: str, job: Job | None) -> Job | None:
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


# --- submitting: in batches, as over HTTP -----------------------------------------------------------------------------


def admit_batch(
    app: Celery,
    items: Sequence[Item],
    prepare_item: Callable[[Item], Prepared | Pending[Reply] | Reply],
    reply_to: Callable[[Item, Prepared, Admission | Exception], Reply],
) -> list[Reply | Pending[Reply] | Exception]:
    """Submit the calls of many coroutines in a few round trips, and return the reply to each.

    `prepare_item` returns what is to be submitted, or the reply. What it or `reply_to` raises is the reply, too. A call
    whose row another transaction has locked is submitted again in a thread of its own.
    """
    app_state = app_state_of(app)

    def admit_alone(item: Item, prepared: Prepared) -> Reply:
        return reply_to(item, prepared, admit(app_state, [prepared])[0])

    steps = [or_error(partial(prepare_item, item)) for item in items]
    together = [each for each in steps if isinstance(each, Prepared)]
    admissions = iter(admit(app_state, together, wait_for_locks=False))
    replies: list[Reply | Pending[Reply] | Exception] = []
    for item, step in zip(items, steps, strict=True):
        if not isinstance(step, Prepared):
            replies.append(step)
        elif isinstance(admission := next(admissions), StoreBusyError):
            replies.append(Pending(partial(admit_alone, item, step)))
        else:
            replies.append(or_error(partial(reply_to, item, step, admission)))
    return replies


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call of `aapply_async`, in the context of its coroutine."""

    task: Any
    args: Any
    kwargs: Any
    options: Mapping[str, Any]
    context: Context = field(default_factory=copy_context)
    span: SubmissionSpan = tracing.NO_SPAN

    def prepare(self) -> Prepared | Pending[AsyncResult[Any]]:
        """Return the call with its submission, or what submits it alone, as `apply_async` does."""
        if self.stands_alone():
            return Pending(partial(self.context.run, self.task.apply_async, self.args, self.kwargs, **self.options))
        options = {**self.options}
        key, webhook_url = options.pop("idempotency_key", None), options.pop("webhook_url", None)
        arguments = checked_arguments(self.args, self.kwargs)
        call = Call(self.task, *arguments, options, key=key, webhook_url=webhook_url)
        return self.context.run(prepare, app_state_of(self.task.app), call)

    def stands_alone(self) -> bool:
        is_own = type(self.task).apply_async is not Task.apply_async
        given = any(self.options.get(name) is not None for name in ALONE)
        return is_own or given or app_state_of(self.task.app).is_eager

    def answer(self, prepared: Prepared, admission: Admission | Exception) -> AsyncResult[Any]:
        if isinstance(admission, Admission):
            self.span.record([admission])
        return answer(prepared, admission)


def _submission_batcher(app: Celery) -> Batcher[_Pending, AsyncResult[Any]]:
    return Batcher(partial(admit_batch, app, prepare_item=_Pending.prepare, reply_to=_Pending.answer))


async def submit(task: Task, args: Any, kwargs: Any, options: Mapping[str, Any]) -> AsyncResult[Any]:
    """Submit a call as `apply_async` does, without blocking the event loop, also if the coroutine is canceled.

    Within the body of a job it is `apply_async` itself, because Celery knows the running task by its thread.
    """
    if _in_body(task):
        return task.apply_async(args, kwargs, **options)
    if hasattr(options.get("session"), "run_sync"):
        return await _run_in_session(partial(task.apply_async, args, kwargs), options)
    call, batcher = _Pending(task, args, kwargs, options), app_state_of(task.app).for_loop(_submission_batcher)
    if tracing.tracer is tracing.NO_TRACER or call.stands_alone():
        return await batcher.process(call)
    with tracing.tracer.submit(str(task.name), "apply_async") as span:
        return await batcher.process(replace(call, span=span, context=copy_context()))


async def submit_many(task: Task, items: Iterable[Any], options: Mapping[str, Any]) -> list[AsyncResult[Any]]:
    """Submit many calls as `submit_many` does, without blocking the event loop; see `submit`."""
    if _in_body(task):
        return task.submit_many(items, **options)
    if hasattr(options.get("session"), "run_sync"):
        return await _run_in_session(partial(task.submit_many, items), options)
    return await reader_of(task.app).run(partial(task.submit_many, items, **options))


def _in_body(task: Any) -> bool:
    return current_job_or_none() is not None or task.app.current_worker_task is not None


async def _run_in_session(function: Callable[..., T], options: Mapping[str, Any]) -> T:
    """Call a function with the synchronous side of an asynchronous session, whose driver does not block."""
    session: Any = options["session"]
    others = {name: value for name, value in options.items() if name != "session"}
    result: T = await session.run_sync(lambda sync: function(session=sync, **others))
    return result


# --- changes of jobs: one watcher per event loop reads the watched jobs in batches -----------------------------------


class Watch:
    """The last known version of a watched job; None once it has been deleted."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.waiters = 0
        self.unsubscribe: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait until the job changes, for at most so many seconds; return whether it has changed."""
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._changed.wait(), seconds)
        return False

    def update(self, job: Job | None) -> None:
        """Set the job, and notify the waiters if it has changed."""
        if job != self.job:
            self.job = job
            self.notify()

    def notify(self) -> None:
        """Wake all waiters."""
        self._changed.set()
        self._changed = asyncio.Event()


class Watcher:
    """Reads the watched jobs, in one thread: each when its end is signaled, and all every `interval` seconds (None: 1).

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
        """Whether the loop will look at what is signaled. The thread that listens sets it."""
        self._reads_all_at = 0.0
        self._reading = asyncio.Lock()
        """Held during a read, so that no later one is overtaken."""

    @asynccontextmanager
    async def watch(self, job: Job) -> AsyncIterator[Watch]:
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

    def _add(self, job: Job) -> Watch:
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

    def _read_jobs(self, job_ids: Sequence[str]) -> dict[str, Job | None]:
        found = self.ledger.store.get_awaited(job_ids)
        return {job_id: _without_message(found[job_id]) if job_id in found else None for job_id in job_ids}


def _without_message(job: Job) -> Job:
    """Return a job without its arguments and options, which no view shows: they would be held while it is watched."""
    return replace(job, payload="", options="")
