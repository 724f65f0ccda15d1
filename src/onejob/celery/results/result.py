"""The Celery result that `delay` returns: it reads the ledger, so that no result backend is needed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

from celery import result as celery_result
from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import TaskRevokedError, TimeoutError  # noqa: A004 - the name that Celery's users catch
from vine import promise

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import REPLACED, decode_failure, loads
from onejob.celery.results.timeouts import obstacle_to, timeout_text
from onejob.celery.run import current_run_or_none
from onejob.errors import JobNotFoundError, JobPurgedError, OneJobError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, JobRow, Outcome
from onejob.jobs.public_view import Job, public_job
from onejob.stores.protocol import BACKSTOP, POLL, Channel, Store

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", covariant=True, default=Any)
    Untyped: Any = object

    class CeleryResult(Untyped):  # type: ignore[misc]
        """The members that `onejob.AsyncResult` inherits from `celery.result.AsyncResult`."""

        id: str
        task_id: str
        app: Any
        parent: Any

        state: str
        status: str
        info: Any
        traceback: str | None
        date_done: datetime | None
        name: str | None
        retries: int | None
        ignored: bool
        TimeoutError: type[Exception]
        successful: Callable[[], bool]
        failed: Callable[[], bool]
        then: Callable[..., Any]
        collect: Callable[..., Any]
        as_tuple: Callable[[], Any]

        @property
        def children(self) -> Sequence[Any] | None:
            """The results of the tasks that the task has submitted."""
else:
    from typing import TypeVar

    from celery.result import AsyncResult as CeleryResult

    R_co = TypeVar("R_co", covariant=True)  # defaults need Python 3.13


class AsyncResult(CeleryResult, Generic[R_co]):
    """A Celery `AsyncResult` whose `state`, `info` and `get()` come from the ledger.

    `outcome` is the outcome of the submission; None for a result that was looked up by its id.
    """

    outcome: Outcome | None = None
    _cache: dict[str, Any] | None
    _admission: Admission | None = None
    _may_be_committed: Callable[[], bool] | None = None
    """Returns whether the transaction in which the job was submitted is open; None without a transaction."""

    @cached_property
    def backend(self) -> Any:
        """The result backend of the app."""
        return self.app.backend

    @property
    def children(self) -> list[Any]:
        """The results of the tasks that the job's run has submitted, once the result backend has them; else none."""
        children = meta_elsewhere(self.backend, self.id).get("children") or ()
        return [celery_result.result_from_tuple(child, self.app) for child in children]

    @property
    def supports_native_join(self) -> bool:
        """False: a group's `get` reads its members one by one, since a result backend does not know the ledger."""
        return False

    @cached_property
    def on_ready(self) -> Any:
        """The promise that `then` attaches callbacks to."""
        return promise(self._on_fulfilled, weak=True)

    @property
    def job(self) -> Job:
        """The job that answers this submission, in its current state. Raises `JobNotFoundError`."""
        return public_job(app_state_of(self.app).ledger.get(self._job_id))

    async def ajob(self) -> Job:
        """Return `job`, without blocking the event loop."""
        from onejob.celery.results.async_reads import read_job

        return public_job(await read_job(self.app, self._job_id))

    @property
    def _job_id(self) -> str:
        """The id of the job that answers this submission, which this result's own job may follow."""
        return self._admission.job.id if self._admission else self.id

    @overload
    def get(
        self, timeout: float | None = None, propagate: Literal[True] = True,  # noqa: FBT002
        interval: float = BACKSTOP, **options: Any,
    ) -> R_co: ...  # fmt: skip
    @overload  # it may return the exception
    def get(
        self, timeout: float | None = None, propagate: bool = True,  # noqa: FBT001, FBT002
        interval: float = BACKSTOP, **options: Any,
    ) -> Any: ...  # fmt: skip
    def get(
        self, timeout: float | None = None, propagate: bool = True,  # noqa: FBT001, FBT002 - Celery's signature
        interval: float = BACKSTOP, **options: Any,
    ) -> Any:  # fmt: skip
        """Wait for the job's end and return its result, or raise its failure or that of a job before it in a chain.

        `timeout` in seconds: raises `celery.exceptions.TimeoutError`. A canceled job raises `TaskRevokedError`,
        a purged job `JobPurgedError`, a job whose transaction was rolled back `JobNotFoundError`. An id that was
        looked up, and that no ledger has, is pending, as in Celery: pass a timeout.

        The end of the job wakes the wait. `interval`: seconds at most between two reads, after each of which
        `on_interval` is called. `callback` gets the id and the result.
        """
        if options.get("disable_sync_subtasks", True):
            celery_result.assert_will_not_block()  # type: ignore[attr-defined] # missing in the published types
        self._check_is_no_circle()
        follow_parents = propagate and options.get("follow_parents", True)
        if self._cache is None or follow_parents:
            self._await_end(timeout, interval, options.get("on_interval"), follow_parents=follow_parents)
        value = self._value_of(self._get_task_meta(), propagate=propagate)
        if (callback := options.get("callback")) is not None:
            callback(self.id, value)
        return value

    wait = get

    def _check_is_no_circle(self) -> None:
        """Raise `OneJobError` in the run of the awaited job itself, or of a job whose end it needs."""
        run, admission = current_run_or_none(), self._admission
        if run is None:
            return
        jobs = [] if admission is None else [admission.job, *filter(None, [admission.follower])]
        if run.id in {self.id, *(each.id for each in jobs), *(each.follows_id for each in jobs)}:
            raise OneJobError(
                f"job {run.id} would wait for its own end: the call that it waits for is equal to it, and is answered "
                "by it or runs after it. Return, and submit the call without waiting"
            )

    @overload
    async def aget(self, timeout: float | None = None, *, propagate: Literal[True] = True) -> R_co: ...  # noqa: ASYNC109 - as `get`
    @overload
    async def aget(self, timeout: float | None = None, *, propagate: bool = True) -> Any: ...  # noqa: ASYNC109
    async def aget(self, timeout: float | None = None, *, propagate: bool = True) -> Any:  # noqa: ASYNC109
        """Wait for the job's end as `get` does, without blocking the event loop. Raises as `get` does.

        All waits of one event loop share one reader. Canceling the coroutine ends the wait, not the job.
        """
        from onejob.celery.results.async_reads import wait_for_end

        celery_result.assert_will_not_block()  # type: ignore[attr-defined] # missing in the published types
        self._check_is_no_circle()
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.parent is not None and propagate:
            await _await_result(self.parent, deadline)
        if self._cache is None:
            left = timeout if self.parent is None else _seconds_until(deadline)
            submitted = None
            if self._admission is not None and self._may_be_committed is None:  # not in an open transaction
                submitted = self._admission.follower or self._admission.job
            self._cache = await wait_for_end(self.app, self.id, meta_of, self._read, left, submitted)
        return self._value_of(self._get_task_meta(), propagate=propagate)

    def _await_end(
        self, timeout: float | None, interval: float, on_interval: Callable[[], object] | None, *, follow_parents: bool
    ) -> None:
        """Wait for the job's end, also through an outage of the store after the first read.

        Raises `TimeoutError`, and the failure of a job before it in a chain.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        earlier = [parent.id for parent in self._parents() if parent.id] if follow_parents else []
        store, is_new = app_state_of(self.app).ledger.store, self._admission is not None
        status, obstacle = "", ""
        with EndWait(store, self.id, earlier, may_have_ended=not is_new) as wait:
            while True:
                try:
                    status, obstacle = self._get_task_meta(wait)["status"], ""
                    if follow_parents:
                        self._maybe_reraise_parent_error()
                except StoreUnavailableError as error:
                    if not status:
                        raise
                    obstacle = f"the ledger does not answer: {error}"
                if not obstacle and status in states.READY_STATES:
                    return
                if (remaining := deadline - time.monotonic()) <= 0:
                    obstacle = obstacle or obstacle_to(self.app, self.id)
                    raise TimeoutError(timeout_text(self.id, status, timeout or 0.0, obstacle))
                if on_interval is not None:
                    on_interval()
                wait.wait(min(remaining, interval))

    @staticmethod
    def _value_of(meta: dict[str, Any], *, propagate: bool) -> Any:
        if isinstance(meta["result"], JobPurgedError) or (propagate and meta["status"] in states.PROPAGATE_STATES):
            raise meta["result"]
        return meta["result"]

    def ready(self) -> bool:
        """Return whether the job has ended."""
        return self._get_task_meta()["status"] in states.READY_STATES

    def revoke(self, connection: Any = None, terminate: bool = False, signal: Any = None, **options: Any) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Cancel the job in the ledger, and broadcast the revocation to the workers; `terminate` kills a run.

        As in Celery, nothing is returned of the job, and a job that has ended stays as it is.
        """
        with suppress(JobNotFoundError):
            app_state_of(self.app).ledger.cancel(self.id, force=terminate, reason="revoked")
        super().revoke(connection=connection, terminate=terminate, signal=signal, **options)

    def __del__(self) -> None:
        """Do nothing: a result that reads the ledger has no pending operations in a backend."""

    def forget(self) -> None:
        """Do nothing: the ledger purges a job after its retention."""

    def exists(self) -> bool:
        """Return whether the job is in the ledger."""
        return app_state_of(self.app).ledger.get_or_none(self.id) is not None

    def _get_task_meta(self, wait: EndWait | None = None) -> dict[str, Any]:
        meta = self._cache or self._read(wait)
        if meta["status"] in states.READY_STATES:
            self._cache = meta
        return meta

    def _read(self, wait: EndWait | None = None) -> dict[str, Any]:
        """Return the result as it is now. Raises `JobNotFoundError` for a submission whose job will never exist."""
        may_appear = self._admission is None or (self._may_be_committed is not None and self._may_be_committed())
        job = app_state_of(self.app).ledger.get_or_none(self.id) if wait is None else wait.read()
        if job is not None and job.reason != REPLACED:
            return meta_of(job, self.app)
        meta = meta_elsewhere(self.backend, self.id)
        if job is None and meta["status"] not in states.READY_STATES:
            error = app_state_of(self.app).ledger.why_missing(self.id)
            if isinstance(error, JobPurgedError):
                return _meta(self.id, CELERY_STATES[State(error.state)], error)
            if not may_appear:
                raise JobNotFoundError(self.id)
        return meta


def result_of_submission(
    admission: Admission, app: Any, may_be_committed: Callable[[], bool] | None = None
) -> AsyncResult[Any]:
    """Return the result of a submission. Celery's constructor makes a promise, which few callers use.

    `may_be_committed`: returns whether the transaction of the submission is open; None without one.
    """
    result: AsyncResult[Any] = AsyncResult.__new__(AsyncResult)
    job = admission.follower or admission.job
    result.__dict__.update(
        id=job.id, app=app, parent=None, outcome=admission.outcome, _admission=admission, _cache=None, _ignored=False,
    )  # fmt: skip
    if may_be_committed is not None:
        result.__dict__["_may_be_committed"] = may_be_committed
    return result


async def _await_result(result: Any, deadline: float | None) -> None:
    """Wait for the earlier result in a chain, or results of a group. Raises a failure of them, and `TimeoutError`."""
    if hasattr(result, "aget"):
        await result.aget(_seconds_until(deadline))
    elif (members := getattr(result, "results", None)) is not None:
        for each in members:
            await _await_result(each, deadline)
    else:
        import asyncio

        await asyncio.to_thread(result.get, _seconds_until(deadline))


def _seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


# --- waiting in a thread: the signal of the end wakes, a read per second finds what was not signaled ------------------


PAUSES = (0.002, 0.5)
"""Seconds between two reads of a result that nothing signals: at first, and at most. Each is 1.5 times the previous."""


class EndWait:
    """A wait for the end of a job, as a context manager; until the job exists, the ends of `earlier` jobs wake, too.

    `may_have_ended`: the first read only looks, since no listening connection is to be opened for an ended job.
    """

    def __init__(self, store: Store, job_id: str, earlier: Sequence[str] = (), *, may_have_ended: bool = True) -> None:
        self._store = store
        self._job_id = job_id
        self._earlier = earlier
        self._woken = Event()
        self._pause = PAUSES[0]
        self._is_signaled = False
        self._was_woken = False
        self._only_looks = may_have_ended
        self._subscriptions = ExitStack()

    def __enter__(self) -> Self:
        if not self._only_looks:
            self._subscribe()
        return self

    def __exit__(self, *_: object) -> None:
        self._subscriptions.close()

    def read(self) -> JobRow | None:
        """Return the job, and have its end signaled. Raises `StoreError`."""
        self._is_signaled = False  # after an error nothing is known to wake
        if self._only_looks:
            return self._store.get_many([self._job_id]).get(self._job_id)
        self._woken.clear()
        read = self._store.get_many if self._was_woken else self._store.get_awaited
        job = read([self._job_id, *self._earlier]).get(self._job_id)
        # Who waits for a job that has ended waits for what only a result backend has.
        self._is_signaled = job is not None and not job.state.final and self._store.signals.interval > POLL
        if job is not None:
            self._earlier = ()
        return job

    def wait(self, seconds: float) -> None:
        """Wait until the job should be read again, at most so many seconds."""
        if self._only_looks:
            self._only_looks = False
            self._subscribe()
            return
        pause = self._store.signals.interval if self._is_signaled else self._pause
        self._was_woken = self._woken.wait(min(seconds, pause))
        self._pause = PAUSES[0] if self._was_woken else min(self._pause * 1.5, PAUSES[1])

    def _subscribe(self) -> None:
        for job_id in (self._job_id, *self._earlier):
            unsubscribe = self._store.signals.subscribe(Channel.END, job_id, lambda _: self._woken.set())
            self._subscriptions.callback(unsubscribe)


class EagerResult(celery_result.EagerResult):  # type: ignore[type-arg] # which it has none of at run time
    """The result of a call with `task_always_eager`, which ran at once and without the ledger: there is no job."""

    outcome = Outcome.ADMITTED

    @property
    def job(self) -> Job:
        """Raises `JobNotFoundError`."""
        raise JobNotFoundError(self.id)

    async def ajob(self) -> Job:
        """Raises `JobNotFoundError`."""
        return self.job

    async def aget(self, timeout: float | None = None, *, propagate: bool = True) -> Any:  # noqa: ASYNC109, ARG002 - as `AsyncResult.aget`
        """Return the result of `get`."""
        return self.get(propagate=propagate)


# --- a job as Celery's results show it --------------------------------------------------------------------------------


CELERY_STATES = {
    State.QUEUED: states.PENDING,
    State.RUNNING: states.STARTED,
    State.RETRYING: states.RETRY,
    State.COMPLETED: states.SUCCESS,
    State.FAILED: states.FAILURE,
    State.CANCELED: states.REVOKED,
}


def meta_of(job: JobRow, app: Any) -> dict[str, Any]:
    """Return a job's result as Celery's backends do. Raises `InvalidPayloadError` if it does not fit its task."""
    failed = job.state is State.FAILED or (job.state is State.RETRYING and job.error is not None)
    error = decode_failure(job.id, job.error) if failed else None
    status, result = CELERY_STATES[job.state], error
    if job.state is State.COMPLETED and job.result is not None:
        task, result = app.tasks.get(job.task), loads(job.result)
        if hasattr(task, "_onejob") and (typed := task._onejob.typed) is not None:
            result = typed.build_result(result)
    elif job.state is State.CANCELED:
        result = TaskRevokedError(job.reason)
    elif job.state is State.RUNNING and job.progress:
        result = loads(job.progress)
        if isinstance(result, dict) and result.keys() == {"state", "meta"}:  # as `Run.report_state` stores them
            status, result = result["state"] or status, result["meta"]
    return _meta(job.id, status, result) | {
        "name": job.task,
        "traceback": loads(job.error)["traceback"] if error and job.error else None,
        "date_done": job.finished_at and datetime.fromtimestamp(job.finished_at, UTC),
        "retries": job.retries,
    }


def meta_elsewhere(backend: Any, task_id: str) -> dict[str, Any]:
    """Return the result that a result backend has stored for an id, whatever the ledger has."""
    if isinstance(backend, DisabledBackend):
        return _meta(task_id, states.PENDING)
    read = getattr(backend, "get_other_meta", backend.get_task_meta)  # of a backend that reads the ledger, too
    return dict(read(task_id))


def _meta(job_id: str, status: str, result: Any = None) -> dict[str, Any]:
    return {"status": status, "result": result, "task_id": job_id, "traceback": None, "children": []}
