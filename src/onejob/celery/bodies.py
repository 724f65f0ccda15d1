"""Awaits the coroutine of an `async def` body: in the event loop of its worker, or else in one of its thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from inspect import iscoroutine
from typing import Any, TypeVar

from celery.exceptions import TimeLimitExceeded

from onejob.celery.local_stacks import follow_body
from onejob.celery.run import current_run_or_none
from onejob.errors import describe
from onejob.stores.carrier import can_wait

T = TypeVar("T")
_of_thread = threading.local()
_INNER, _AWAITS = "_orig_run", "_onejob_awaits"
"""The attribute in which Celery keeps the body of a task with `autoretry_for`, and the mark of one that awaits."""
_is_calling: ContextVar[bool] = ContextVar("onejob_is_calling_body", default=False)
"""Whether `awaiting` is calling a body."""
_awaiter: ContextVar[Callable[[Coroutine[Any, Any, Any]], Any] | None] = ContextVar("onejob_awaiter", default=None)
set_awaiter = _awaiter.set
"""Gives a context the function that returns the result of a coroutine in the event loop of its worker."""


def awaiting(task: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the body of a task, and returns the result of its coroutine.

    Celery's `autoretry_for` calls the body in a function of its own, which has to see the exception of the coroutine:
    so that function gets the result, too.
    """
    inner = vars(task).get(_INNER)
    if inner is not None and not hasattr(inner, _AWAITS):
        setattr(task, _INNER, _await_in_calls(inner))

    def call(*args: Any, **kwargs: Any) -> Any:
        if inner is None:
            return _await(body(*args, **kwargs))
        token = _is_calling.set(True)
        try:
            return body(*args, **kwargs)
        finally:
            _is_calling.reset(token)

    return call


def _await_in_calls(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a body that returns the result of its coroutine to a call of `awaiting`, and others the coroutine."""

    @wraps(inner)
    def run(*args: Any, **kwargs: Any) -> Any:
        value = inner(*args, **kwargs)
        if not _is_calling.get():
            return value
        _is_calling.set(False)  # the coroutine may call this task, or others
        return _await(value)

    setattr(run, _AWAITS, True)
    return run


def _await(value: Any) -> Any:
    """Return the value of a body, or the result of its coroutine, once the open transactions are rolled back."""
    return _await_coroutine(_ending(value)) if iscoroutine(value) else value


async def _ending(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a body, and end the transactions that it has left open."""
    try:
        return await coroutine
    finally:
        run = current_run_or_none()
        if run is not None and run.sessions:
            await run.arollback_sessions()


def _await_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    awaiter = _awaiter.get()
    if awaiter is not None and can_wait():
        result: T = awaiter(coroutine)
        return result
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - documented for this
        return _run(coroutine)
    # A task that is called at once, within a coroutine: its loop cannot run another one.
    with ThreadPoolExecutor(1, "onejob-eager") as thread:
        return thread.submit(copy_context().run, partial(asyncio.run, coroutine)).result()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of this thread; an exception from outside, as of a signal handler, cancels it."""
    loop, context = _loop(), copy_context()
    context.run(follow_body)
    task = loop.create_task(coroutine, context=context)
    try:
        return loop.run_until_complete(task)
    except BaseException as error:
        if not task.done():
            task.cancel(describe(error))
            loop.run_until_complete(asyncio.wait([task]))
            if not task.cancelled():
                task.exception()  # so that it counts as seen
        raise


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread, which all its tasks share, with their connections."""
    held: _ThreadLoop | None = getattr(_of_thread, "held", None)
    if held is None or held.process != os.getpid():
        if held is not None:
            _inherited.append(held)
        held = _of_thread.held = _ThreadLoop()
    return held.loop


_inherited: list[_ThreadLoop] = []
"""The loops of the parent of this process, which share their files with it, and must not be closed here."""


class _ThreadLoop:
    """An event loop that is closed when its thread ends."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()

    def __del__(self) -> None:
        if self.process == os.getpid():
            self.loop.close()


# --- hard time limits, which end a process elsewhere: no job is retried after one -------------------------------------


_ENDS_JOB = "onejob_ends_job"


def hard_limit(seconds: float) -> TimeLimitExceeded:
    """Return the error by which a body ends that has exceeded its hard time limit."""
    error = TimeLimitExceeded(seconds)
    setattr(error, _ENDS_JOB, True)
    return error


def is_hard_limit(error: BaseException) -> bool:
    """Return whether an error is one of `hard_limit`, and none that a body has raised."""
    return hasattr(error, _ENDS_JOB)
