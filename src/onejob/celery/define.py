"""The decorator `onejob.task`: a task of class `onejob.Task`, whose calls and results a type checker knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TypeVar, overload

from celery import Celery, shared_task

from onejob.celery.option_names import TASK_OPTIONS, check_definition_names
from onejob.celery.options import check_definition
from onejob.celery.task import Task
from onejob.celery.typed import check_pydantic
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec, Unpack

    from onejob.celery.call_types import TaskKeywords

    P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


@overload
def task(
    app: Celery | None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
) -> Callable[[Callable[Concatenate[Self, P], R]], Task[P, R]]: ...
@overload
def task(
    app: Celery | None = None, /, *, bind: Literal[False] = False, **options: Unpack[TaskKeywords]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(app: Celery | None = None, /, *, bind: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Define a task of class `onejob.Task`, as `@app.task(base=onejob.Task, ...)` does, with types.

    `options` are those of `onejob.Task` and of Celery's `app.task`; `base` may be a subclass of `onejob.Task`. With
    `bind=True` the first parameter of the body is the task. Without an app it is a shared task, as by Celery's
    `shared_task`: each app gets it, for Django, Flask and libraries.

    Returns a decorator, whose result is Celery's own task. Type checkers see a `Task[P, R]`: the parameters and the
    return type of the body. Raises `ConfigurationError`, as a task's definition does.
    """
    if app is not None and not isinstance(app, Celery):
        msg = (
            f"onejob.task takes a Celery app, not {app!r:.200}: write @onejob.task(app), or @onejob.task() for any app"
        )
        raise ConfigurationError(msg)
    base = options.pop("base", None) or Task
    if not (isinstance(base, type) and issubclass(base, Task)):
        msg = f"base of a onejob.task must be a subclass of onejob.Task, not {base!r:.200}"
        raise ConfigurationError(msg)
    if not options.get("pydantic") and not any("typed" in vars(kind) for kind in base.__mro__ if kind is not Task):
        options.setdefault("typed", True)
    define: Any = shared_task if app is None else app.task
    decorator: Callable[[Any], Any] = define(base=base, bind=bind, **options)

    def decorate(body: Any) -> Any:
        name = str(options.get("name") or f"{body.__module__}.{body.__name__}")
        check_definition_names(name, options, base)
        given = {option: options.get(option, getattr(base, option)) for option in TASK_OPTIONS}
        check_definition(name, SimpleNamespace(**given), body, bound=bind)  # Celery binds the task at its first use
        if given["typed"]:
            check_pydantic(name, body)
        return decorator(body)

    return decorate
