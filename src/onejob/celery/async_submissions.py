"""Submitting in coroutines: concurrent calls of one event loop are batched, in threads, as those over HTTP are."""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from onejob.celery.app_state import app_state_of
from onejob.celery.async_reads import reader_of
from onejob.celery.batching import Batcher, Deferred
from onejob.celery.current_job import current_job_or_none
from onejob.celery.option_names import check_call_options
from onejob.celery.options import options_of
from onejob.celery.result import AsyncResult
from onejob.celery.submission import prepare_submission
from onejob.celery.submit import check_accepted, submit_each
from onejob.errors import StoreBusyError
from onejob.jobs.model import Admission
from onejob.observability import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextvars import Context

    from celery import Celery

    from onejob.jobs.model import Submission
    from onejob.observability.tracing import SubmissionSpan

ALONE = frozenset({"session", "producer", "task_id", "webhook_url"})
"""Options of `apply_async` with which a call is submitted alone."""
NotPrepared: TypeAlias = "Deferred[AsyncResult[Any]] | Exception"
"""What submits a call alone, or its error."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `aapply_async`, in the context of its coroutine."""

    task: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    alone: bool
    context: Context = field(default_factory=copy_context)
    span: SubmissionSpan = tracing.NO_SPAN

    def prepare(self) -> Submission | NotPrepared:
        """Return the submission of the call, or why it has none."""
        try:
            if self.stands_alone():
                return Deferred(self.submit_alone)
            check_call_options(self.options)
            options = {name: value for name, value in self.options.items() if value is not None}
            key = options.pop("idempotency_key", None)
            return prepare_submission(self.task, self.kwargs, args=self.args, source="apply_async", key=key, **options)
        except Exception as error:  # noqa: BLE001 - it is raised in the coroutine of the call
            return error

    def stands_alone(self) -> bool:
        """Return whether the call is submitted by `apply_async`, not in a batch with others."""
        app_state = app_state_of(self.task.app)
        return (
            self.alone
            or any(self.options.get(name) is not None for name in ALONE)
            or app_state.is_eager
            or options_of(self.task).webhook_url is not None
        )

    def submit_alone(self) -> AsyncResult[Any] | Exception:
        """Submit the call as `apply_async` does; return its result or its error."""
        try:
            result: AsyncResult[Any] = self.context.run(
                self.task.apply_async, tuple(self.args), dict(self.kwargs), **self.options
            )
        except Exception as error:  # noqa: BLE001 - it is raised in the coroutine of the call
            return error
        return result

    def finish(self, submission: Submission, admission: Admission | Exception) -> AsyncResult[Any] | NotPrepared:
        """Return the result of the call, or its error. A call whose row is locked is submitted alone."""
        if isinstance(admission, StoreBusyError):
            return Deferred(self.submit_alone)
        if not isinstance(admission, Admission):
            return admission
        self.span.record([admission])
        try:
            check_accepted(submission, self.options.get("idempotency_key"), admission)
        except Exception as error:  # noqa: BLE001 - it is raised in the coroutine of the call
            return error
        result: AsyncResult[Any] = AsyncResult.of(admission, self.task.app)
        result.ignored = bool(self.options.get("ignore_result", self.task.ignore_result))
        return result


def _submission_batcher(app: Celery) -> Batcher[Call, AsyncResult[Any]]:
    return Batcher(partial(_submit_batch, app))


def _submit_batch(app: Celery, calls: Sequence[Call]) -> list[AsyncResult[Any] | NotPrepared]:
    """Submit many calls in a few round trips."""
    prepared = [call.context.run(call.prepare) for call in calls]
    together = [each for each in prepared if not isinstance(each, Deferred | Exception)]
    admissions = iter(submit_each(app, together, wait_for_locks=False) if together else ())
    return [
        each if isinstance(each, Deferred | Exception) else call.finish(each, next(admissions))
        for call, each in zip(calls, prepared, strict=True)
    ]


async def submit(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any], *, alone: bool
) -> Any:
    """Submit a call as `apply_async` does, without blocking the event loop; `alone`: not in a batch with others.

    Once it has started it is carried out, also if the coroutine is canceled. Within the body of a job it is
    `apply_async` itself, because Celery knows the running task by its thread.
    """
    if _in_body(task):
        return task.apply_async(args, kwargs, **options)
    if hasattr(options.get("session"), "run_sync"):
        return await _run_in_session(partial(task.apply_async, args, kwargs), options)
    call, batcher = Call(task, args, kwargs, options, alone), app_state_of(task.app).for_loop(_submission_batcher)
    if tracing.tracer is tracing.NO_TRACER or call.stands_alone():
        return await batcher.process(call)
    with tracing.tracer.submit(str(task.name), "apply_async") as span:
        return await batcher.process(replace(call, span=span, context=copy_context()))


async def submit_many(task: Any, items: Iterable[Any], options: Mapping[str, Any]) -> Any:
    """Submit many calls as `submit_many` does, without blocking the event loop; see `submit`."""
    if _in_body(task):
        return task.submit_many(items, **options)
    if hasattr(options.get("session"), "run_sync"):
        return await _run_in_session(partial(task.submit_many, items), options)
    return await reader_of(task.app).run(partial(task.submit_many, items, **options))


def _in_body(task: Any) -> bool:
    return current_job_or_none() is not None or task.app.current_worker_task is not None


async def _run_in_session(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call a function with the synchronous side of an asynchronous session, whose driver does not block."""
    session: Any = options["session"]
    others = {name: value for name, value in options.items() if name != "session"}
    return await session.run_sync(lambda sync: function(session=sync, **others))
