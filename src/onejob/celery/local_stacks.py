"""Makes Celery's stacks of running tasks those of a run: `self.request` and `current_task` in a coroutine.

Celery keeps them by thread, or by greenlet. Many runs may share the thread of an event loop, and a run has more than
one greenlet, coroutines that it gathers, and threads of `asyncio.to_thread`: all of them have its context.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import Context, ContextVar
from typing import Any, cast

from celery import _state
from celery.utils.threads import get_ident

_tasks: Any = cast("Any", _state)._task_stack  # noqa: SLF001 - no public one
_owner: ContextVar[Any] = ContextVar("onejob_stack_owner", default=None)
set_stack_owner = _owner.set
"""Gives the code of a context the stacks of an owner: an execution of the pool, or a thread or greenlet."""


def owner_in(context: Context) -> Any:
    """Return the owner of the stacks of a context, or None."""
    return context.get(_owner)


def follow_context(tasks: Iterable[Any]) -> None:
    """Keep the stack of running tasks, and the stacks of the requests of these tasks, by their owner."""
    for stack in (_tasks, *(task.request_stack for task in tasks)):
        stack.__ident_func__ = _ident


def follow_body() -> None:
    """Let the stacks of this thread, or greenlet, follow the context of the body that it runs."""
    if _owner.get() is None and (task := _tasks.top) is not None:
        follow_context([task])
        set_stack_owner(get_ident())


def follows_context() -> bool:
    """Return whether Celery knows the running task by this context, also in another thread."""
    return _owner.get() is not None


def _ident() -> Any:
    return _owner.get() or get_ident()
