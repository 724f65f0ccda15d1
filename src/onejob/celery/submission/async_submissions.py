"""Submits calls of coroutines: concurrent calls of one event loop, or over HTTP, are batched in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.celery.async_sessions import AsyncTransaction, async_transaction_of
from onejob.celery.local_stacks import follows_context
from onejob.celery.results.async_reads import reader_of
from onejob.celery.results.result import AsyncResult
from onejob.celery.run import current_run_or_none
from onejob.celery.submission.call import Call, Prepared, checked_arguments, prepare
from onejob.celery.submission.submit import admit, answer
from onejob.concurrency.batching import Batcher
from onejob.errors import StoreBusyError
from onejob.jobs.model import Admission
from onejob.observability import tracing
from onejob.observability.tracing import SubmissionSpan
from onejob.stores.carrier import Pending, or_error

T = TypeVar("T")
Item = TypeVar("Item")
Reply = TypeVar("Reply")
ALONE = frozenset({"session", "producer", "task_id"})
"""The options of `apply_async` with which a call is submitted alone."""


def admit_batch(
    app: Celery, items: Sequence[Item], prepare_item: Callable[[Item], Prepared | Pending[Reply] | Reply],
    reply_to: Callable[[Item, Prepared, Admission | Exception], Reply],
) -> list[Reply | Pending[Reply] | Exception]:  # fmt: skip
    """Submit the calls of many coroutines in a few round trips, and return the reply to each.

    `prepare_item` returns the call to submit, or the reply. An exception of it or of `reply_to` is the reply, too. A
    call whose row another transaction has locked is submitted again in a thread of its own.
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
    alone: bool
    context: Context = field(default_factory=copy_context)
    span: SubmissionSpan = tracing.NO_SPAN

    def prepare(self) -> Prepared | Pending[AsyncResult[Any]]:
        """Return the call with its submission, or the pending reply of an `apply_async` that submits it alone."""
        if self.stands_alone():
            return Pending(partial(self.context.run, self.task.apply_async, self.args, self.kwargs, **self.options))
        options = {**self.options}
        key, webhook_url = options.pop("idempotency_key", None), options.pop("webhook_url", None)
        arguments, on_duplicate = checked_arguments(self.args, self.kwargs), options.pop("on_duplicate", None)
        call = Call(self.task, *arguments, options, key=key, on_duplicate=on_duplicate, webhook_url=webhook_url)
        return self.context.run(prepare, app_state_of(self.task.app), call)

    def stands_alone(self) -> bool:
        given = any(self.options.get(name) is not None for name in ALONE)
        return self.alone or given or app_state_of(self.task.app).is_eager

    def answer(self, prepared: Prepared, admission: Admission | Exception) -> AsyncResult[Any]:
        if isinstance(admission, Admission):
            self.span.record([admission])
        return self.context.run(answer, prepared, admission)


def _submission_batcher(app: Celery) -> Batcher[_Pending, AsyncResult[Any]]:
    return Batcher(partial(admit_batch, app, prepare_item=_Pending.prepare, reply_to=_Pending.answer))


async def submit(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any], *, alone: bool) -> AsyncResult[Any]:
    """Submit a call like `apply_async`, without blocking the event loop, also if the coroutine is canceled.

    Within the body of a job that is no coroutine, `apply_async` itself is called, because Celery knows the running task
    by its thread.
    """
    if _in_body(task):
        return task.apply_async(args, kwargs, **options)  # type: ignore[no-any-return]
    if (transaction := async_transaction_of(options.get("session"))) is not None:
        return await _run_in_session(partial(task.apply_async, args, kwargs), transaction, options)
    call, batcher = _Pending(task, args, kwargs, options, alone), app_state_of(task.app).for_loop(_submission_batcher)
    if tracing.tracer is tracing.NO_TRACER or call.stands_alone():
        return await batcher.process(call)
    with tracing.tracer.submit(str(task.name), "apply_async") as span:
        return await batcher.process(replace(call, span=span, context=copy_context()))


async def submit_many(task: Any, items: Iterable[Any], options: Mapping[str, Any]) -> list[AsyncResult[Any]]:
    """Submit many calls like `submit_many`, without blocking the event loop; see `submit`."""
    if _in_body(task):
        return task.submit_many(items, **options)  # type: ignore[no-any-return]
    if (transaction := async_transaction_of(options.get("session"))) is not None:
        return await _run_in_session(partial(task.submit_many, items), transaction, options)
    return await reader_of(task.app).run(partial(task.submit_many, items, **options))


def _in_body(task: Any) -> bool:
    """Return whether this code is in the body of a task which Celery would not know in another thread."""
    if follows_context():
        return False
    return current_run_or_none() is not None or task.app.current_worker_task is not None


async def _run_in_session(function: Callable[..., T], transaction: AsyncTransaction, options: Mapping[str, Any]) -> T:
    """Call a function with the synchronous side of an asynchronous session, whose driver does not block."""
    others = {name: value for name, value in options.items() if name != "session"}
    return await transaction.call(lambda sync: function(session=sync, **others))
