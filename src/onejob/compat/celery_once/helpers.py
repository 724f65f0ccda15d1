"""The text of a lock as celery-once makes it, so that both libraries name the same lock; and its exception."""

from typing import Any

from onejob.compat.shims import import_class
from onejob.errors import OneJobError


class AlreadyQueued(OneJobError):  # noqa: N818 - celery-once's name
    """A submission is a duplicate, and is not `graceful`."""

    def __init__(self, countdown: float) -> None:
        super().__init__(countdown)
        self.countdown = countdown
        """Seconds until the lock would expire in celery-once: the rest of `timeout`. Here the end of the job counts."""
        self.message = f"Expires in {countdown} seconds"

    def __str__(self) -> str:
        return self.message


def import_backend(config: Any) -> Any:
    """Return the backend that the setting `ONCE` describes: its class, called with its settings."""
    made = import_class(config["backend"], "celery_once", "onejob.compat.celery_once")
    return made(config["settings"])


def force_string(value: Any) -> Any:
    """Return a dict as text with sorted keys; apply this to the items of a list; return any other value unchanged."""
    if isinstance(value, dict):
        pairs = {force_string(key): force_string(value[key]) for key in sorted(value)}
        return "{" + ", ".join(str({key: pairs[key]}).strip("{}") for key in pairs) + "}"
    return [force_string(each) for each in value] if isinstance(value, list) else value


def kwargs_to_list(kwargs: Any) -> list[str]:
    """Return `name-value` for each argument, sorted by name."""
    return [f"{name}-{force_string(kwargs[name])}" for name in sorted(kwargs)]


def queue_once_key(name: str, kwargs: Any, restrict_to: Any = None) -> str:
    """Return the key of a call: the task's name and the arguments, or those in `restrict_to`. Raises `KeyError`."""
    chosen = kwargs if restrict_to is None else {each: kwargs[each] for each in restrict_to}
    return "_".join(["qo", force_string(name), *kwargs_to_list(chosen)])
