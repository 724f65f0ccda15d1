"""Finds tasks that have options of `onejob.Task` without its class: a forgotten `base=`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from celery import Celery
from celery import Task as CeleryTask

from onejob.celery.app_state import app_state_of
from onejob.celery.option_declarations import TASK_OPTIONS, TaskDefaults, attributes_of, similar_name
from onejob.observability.logs import log_warning

DISTINCTIVE = ("unique_on", "unique_until", "unique_for", "on_duplicate", "permanent_for", "requires_key")
"""The options whose names mean nothing else. An attribute such as `tags` or `schedule` may be the task's own."""
BUILT_IN = "celery."
MEANING = "nothing reads the options: equal calls are separate tasks, and each of them runs"
REMEDY = "add `base=onejob.Task` to the definition of the task, or remove the options"


class PlainTask(NamedTuple):
    """A task that is not of class `onejob.Task`, and its attributes that only this class reads."""

    name: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        """Return the finding, in one clause."""
        return f"task {self.name} has {', '.join(self.options)}, and is not of class onejob.Task"


def plain_tasks(app: Celery) -> Iterator[PlainTask]:
    """Yield the tasks of a finalized app that have options of `onejob.Task`, perhaps misspelt, without its class."""
    # A thread that waits in `app.tasks` for the end of `finalize` holds a lock, which this one would wait for in it.
    tasks: Mapping[str, Any] = cast("Any", app)._tasks  # noqa: SLF001 - Celery's registry
    for name, task in sorted(tasks.items()):
        if not name.startswith(BUILT_IN) and not hasattr(type(task), "_onejob"):
            options = dict.fromkeys(_options_of(type(task)))
            if any(similar_name(each, DISTINCTIVE) for each in options):
                yield PlainTask(name, tuple(options))


def _options_of(task: type) -> Iterator[str]:
    """Yield the attributes that are named like options, unless a base class declares them with onejob's default."""
    for name in attributes_of(task, CeleryTask):
        option = name if name in TASK_OPTIONS else similar_name(name, DISTINCTIVE)
        if option:
            default = getattr(TaskDefaults, option)
            given = [vars(kind)[name] for kind in task.__mro__ if name in vars(kind)]
            if not any(isinstance(each, type(default)) and each == default for each in given):
                yield name


def warn_of_plain_tasks(sender: Celery, **_: Any) -> None:
    """Log a warning for each task of an app that has options without the class, once."""
    warned = app_state_of(sender).warned_plain_tasks
    for task in plain_tasks(sender):
        if task.name not in warned:
            warned.add(task.name)
            log_warning("%s: %s. To do: %s", task, MEANING, REMEDY)
