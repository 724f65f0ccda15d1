"""What a task's definition says, checked when it is bound: options that cannot work are refused there."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any

from onejob.config import check_lease
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.policy import check_seconds
from onejob.uniqueness.on_duplicate import conflict_policy_of
from onejob.uniqueness.window import window_of
from onejob.webhooks.job import WEBHOOK
from onejob.webhooks.url import check_url

if TYPE_CHECKING:
    from onejob.celery.task import Task
    from onejob.config import Settings
    from onejob.uniqueness.identity import Identifier
    from onejob.uniqueness.on_duplicate import ConflictPolicy
    from onejob.uniqueness.window import Window
    from onejob.webhooks.settings import WebhookSettings


def checked_options(cls: type[Task], settings: Settings) -> tuple[ConflictPolicy, Window | None]:
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
    return conflict_policy_of(name, cls.on_duplicate, cls.max_wait, cls.unique_until, cls.unique_for), window


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


def check_webhook(cls: type[Task], settings: WebhookSettings) -> None:
    """Raise `ConfigurationError` for a webhook of a task that could not be sent."""
    if cls.name == WEBHOOK:
        msg = f"{WEBHOOK} is the name of the jobs that tell the ends of others: call the task by another name"
        raise ConfigurationError(msg)
    if cls.webhook_url is None:
        return
    settings.check_usable()
    try:
        check_url(cls.webhook_url, settings)
    except InvalidArgumentsError as error:
        msg = f"task {cls.name}: {error}"
        raise ConfigurationError(msg) from error


def body_of(cls: type[Task]) -> tuple[Any, bool]:
    """Return the function that a user wrote, and whether it takes the task as its first parameter."""
    decorated = cls.__dict__.get("__wrapped__")
    if decorated is None:
        return cls.run, True
    return (decorated.__func__, False) if isinstance(decorated, staticmethod) else (decorated, True)
