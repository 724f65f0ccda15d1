"""Checks the methods that a task's class overrides, and runs its own `before_start` and `__call__` within the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, partialmethod, wraps
from typing import Any

from celery import Task as CeleryTask
from celery.utils.imports import symbol_by_name

from onejob.celery.run import current_run_or_none
from onejob.celery.worker.execute import execute_prepared
from onejob.errors import ConfigurationError

REQUEST = "onejob.celery.worker.request:Request"
SHADOWED = ("delay", "apply_async", "AsyncResult")
"""The methods of `onejob.Task` that call no method of the classes that stand after it."""
_IN_RUN = "_onejob_in_run"
"""The attribute of a hook that is called in the run already."""


def check_class(name: str, cls: Any, base: type) -> None:
    """Check the class of a task against `onejob.Task`, its `base`.

    Raises `ConfigurationError` for a `Strategy` or `Request` of another library, by which jobs would run without their
    claims, and for bases in the wrong order, so that a method would never be called.
    """
    if cls.Strategy != CeleryTask.Strategy:
        owner = _owner_of(cls, "Strategy").__name__
        raise ConfigurationError(
            f"task {name} has the Strategy of {owner}, with which its jobs run without being claimed, again and again: "
            f"use {owner} for a plain task, without onejob.Task. It may submit jobs: other_task.submit_many(...)"
        )
    if cls.Request != REQUEST and not _is_request(cls.Request):
        owner = _owner_of(cls, "Request").__name__
        raise ConfigurationError(
            f"task {name} has the Request {cls.Request!r} of {owner}, which renews no lease, and recovers no job of a "
            "process that died: derive it from onejob.celery.worker.request.Request"
        )
    for method in SHADOWED:
        if (shadowed := next((each.__name__ for each in _after(cls, base) if method in vars(each)), None)) is not None:
            raise ConfigurationError(
                f"task {name} has {shadowed} after onejob.Task, so that its {method} is never called: name it first, "
                f"({shadowed}, onejob.Task), if it passes the call on; one that keeps calls for itself cannot have jobs"
            )


def _is_request(request: Any) -> bool:
    own = symbol_by_name(REQUEST)
    found = symbol_by_name(request)
    return isinstance(found, type) and issubclass(found, own)


def _owner_of(cls: type, name: str) -> type:
    """Return the class that gives a class an attribute."""
    return next((each for each in cls.__mro__ if name in vars(each)), cls)


def _after(cls: type, base: type) -> Iterator[type]:
    """Yield the classes that a user has added between `base` and Celery's task, in the order of resolution."""
    known = {*base.__mro__}
    yield from (each for each in cls.__mro__[cls.__mro__.index(base) :] if each not in known)


# --- hooks that a class overrides -------------------------------------------------------------------------------------


def run_hooks_in_run(cls: Any, base: Any) -> None:
    """Let a class's own `before_start` and `__call__` be called within the run, whatever they call themselves."""
    if cls.before_start is not CeleryTask.before_start and not hasattr(cls.before_start, _IN_RUN):
        cls.before_start = _start_in_run(cls.before_start)
        cls._onejob_execute = execute_prepared
    if _defines_call(each for each in cls.__mro__ if each not in base.__mro__) and not hasattr(cls.__call__, _IN_RUN):
        cls._onejob_within = partialmethod(_call_next, base) if _defines_call(_after(cls, base)) else _run_body
        cls.__call__ = _call_in_run(cls.__call__)


def _defines_call(classes: Iterable[type]) -> bool:
    return any("__call__" in vars(each) for each in classes)


def _run_body(task: Any, request: Any, args: Any, kwargs: Any) -> Any:
    """Run the body, after a class's own `__call__` has called the `__call__` of `onejob.Task`, the last class."""
    request._protected = 1  # noqa: SLF001 - a call of the task in the body is a direct one
    return task.run(*args, **kwargs)


def _call_next(task: Any, base: Any, _request: Any, args: Any, kwargs: Any) -> Any:
    """Call the `__call__` of a class that stands after `onejob.Task`."""
    return super(base, task).__call__(*args, **kwargs)


def _start_in_run(hook: Callable[..., object]) -> Callable[..., None]:
    """Return a task's `before_start` for the tracer: the hook is put off until the run has begun, and can be ended."""

    @wraps(hook)
    def before_start(task: Any, task_id: str, args: Any, kwargs: Any) -> None:
        run, request = current_run_or_none(), task.request
        if request.called_directly or request.is_eager or (run is not None and run.id == task_id):
            hook(task, task_id, args, kwargs)

    setattr(before_start, _IN_RUN, True)
    return before_start


def _call_in_run(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a class's own `__call__` for the tracer: the claim comes first, and then all of the method is the body.

    So it need not call the `__call__` of `onejob.Task`: many call `self.run`, as in Flask's documentation.
    """

    @wraps(own)
    def __call__(task: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it is that of a class
        request = task.request
        if request.called_directly or request.get("onejob_entered"):
            return own(task, *args, **kwargs)
        request.onejob_entered = True
        return task._onejob_enter(request, partial(own, task), args, kwargs)  # noqa: SLF001 - of onejob.Task

    setattr(__call__, _IN_RUN, True)
    return __call__
