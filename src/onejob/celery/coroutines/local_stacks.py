"""Makes Celery's stacks of running tasks those of a run: `self.request` and `current_task` in a coroutine.

Celery keeps them by thread, or by greenlet. Many runs share the thread of an event loop, and a run has more than one
greenlet, coroutines that it gathers, and threads of `asyncio.to_thread`: all of them have its context.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, _state
from celery.utils.threads import get_ident

from onejob.celery.coroutines.execution import current_execution

_celery: Any = _state  # whose published types lack the stack


def follow_executions(app: Celery) -> None:
    """Keep the stacks of this process by execution, and outside of executions as before."""
    for stack in (_celery._task_stack, *(task.request_stack for task in app.tasks.values())):  # noqa: SLF001 - no public one
        stack.__ident_func__ = _ident


def _ident() -> Any:
    return current_execution() or get_ident()
