"""Celery's `autoretry_for` for an `async def` body: its exception is handled where it is awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import iscoroutinefunction, unwrap
from typing import Any, NoReturn

from celery.app.autoretry import add_autoretry_behaviour

from onejob.celery.app_state import app_state_of
from onejob.celery.async_calls import run_async


class OriginalRun:
    """The attribute `_orig_run`, in which Celery keeps the body of a task that has `autoretry_for`.

    Celery's wrapper catches what a call of the body raises, and a coroutine raises later. So an `async def` body is
    kept as one that retries by itself.
    """

    def __get__(self, task: Any, _owner: object) -> Callable[..., Any]:
        """Return the body. Raises `AttributeError` for a task without `autoretry_for`."""
        try:
            return vars(task)["_orig_run"]  # type: ignore[no-any-return]
        except (KeyError, TypeError):  # TypeError: of None, for the class
            raise AttributeError("_orig_run") from None

    def __set__(self, task: Any, body: Callable[..., Any]) -> None:
        """Keep the body."""
        vars(task)["_orig_run"] = _retrying(task, body) if iscoroutinefunction(unwrap(body)) else body


def _retrying(task: Any, body: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(body)
    async def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return await body(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - Celery decides about all of them
            raised = error
        return await run_async(partial(_raise_as_celery, task, raised), app_state_of(task.app).ledger.store)

    return run


def _raise_as_celery(task: Any, error: BaseException) -> NoReturn:
    """Record the retry of a job, and raise `Retry`; or raise the exception of its body, as Celery's wrapper decides."""

    def body() -> NoReturn:
        raise error

    attempt = _Attempt(task, body)
    add_autoretry_behaviour(attempt)
    attempt.run()
    raise AssertionError  # pragma: no cover - the wrapper raises


class _Attempt:
    """A task with another body."""

    def __init__(self, task: Any, run: Callable[[], NoReturn]) -> None:
        self._task = task
        self.run = run

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_run":  # so that Celery wraps the body
            raise AttributeError(name)
        return getattr(self._task, name)

    def __delattr__(self, name: str) -> None:
        delattr(self._task, name)
