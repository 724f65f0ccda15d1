"""What a task's definition says, checked when it is bound: options that cannot work are refused there."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any

from onejob.callbacks.submission import CALLBACK
from onejob.callbacks.target import check_url
from onejob.config import check_lease
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.policy import check_seconds
from onejob.reaction import reaction_of
from onejob.window import window_of

if TYPE_CHECKING:
    from onejob.callbacks.settings import CallbackSettings
    from onejob.celery.task import Task
    from onejob.config import Settings
    from onejob.identity import Identifier
    from onejob.reaction import Reaction
    from onejob.window import Window


def checked_options(cls: type[Task], settings: Settings) -> tuple[Reaction, Window | None]:
    """Return what a task's options ask for. Raises `ConfigurationError` for options that cannot work."""
    name = str(cls.name)
    if cls.lease is not None:
        check_seconds(f"lease of task {name}", cls.lease)
        check_lease(cls.lease, settings.heartbeat)
    _check_permanent(name, cls.permanent_for)
    _check_flags(cls)
    window = window_of(name, cls.unique_until, cls.unique_for)
    if window is not None:
        settings.check_window(name, window.longest)
    return reaction_of(name, cls.on_duplicate, cls.max_wait, cls.unique_until, cls.unique_for), window


def _check_permanent(name: str, given: object) -> None:
    if not isinstance(given, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in given
    ):
        msg = f"permanent_for of task {name} must be a tuple of exception classes, not {given!r}"
        raise ConfigurationError(msg)


def _check_flags(cls: type[Task]) -> None:
    for option in ("expose", "requires_key"):
        given = getattr(cls, option)
        if not isinstance(given, bool):
            msg = f"{option} of task {cls.name} is True or False, not {given!r}"
            raise ConfigurationError(msg)


def check_exposed(cls: type[Task], identifier: Identifier) -> None:
    """Raise `ConfigurationError` for an exposed task that cannot be called by the names of its arguments alone."""
    if not cls.expose:
        return
    for parameter in identifier.signature.parameters.values():
        if parameter.kind not in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}:
            msg = (
                f"task {cls.name} is exposed, so each of its arguments needs a name to be checked under: "
                f"{str(parameter).partition(':')[0]} has none. Name the arguments, or drop expose"
            )
            raise ConfigurationError(msg)


def check_callback(cls: type[Task], settings: CallbackSettings) -> None:
    """Raise `ConfigurationError` for a callback of a task that could not be sent."""
    if cls.name == CALLBACK:
        msg = f"{CALLBACK} is the name of the jobs that tell the ends of others: call the task by another name"
        raise ConfigurationError(msg)
    if cls.callback_url is None:
        return
    settings.check_usable()
    try:
        check_url(cls.callback_url, settings)
    except InvalidArgumentsError as error:
        msg = f"task {cls.name}: {error}"
        raise ConfigurationError(msg) from error


def body_of(cls: type[Task]) -> tuple[Any, bool]:
    """Return the function that a user wrote, and whether it takes the task as its first parameter."""
    decorated = cls.__dict__.get("__wrapped__")
    if decorated is None:
        return cls.run, True
    return (decorated.__func__, False) if isinstance(decorated, staticmethod) else (decorated, True)
