"""Refuses unknown names of settings and options, and values of options with which no message could be sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from types import FunctionType
from typing import Any, ClassVar

from celery.schedules import BaseSchedule
from kombu import Exchange, Queue

from onejob.config import NAMES
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.limits import KEY_COUNT, Limit
from onejob.uniqueness.identity import UniqueOn
from onejob.uniqueness.window import UniqueFor
from onejob.webhooks.settings import WebhookSettings


class TaskDefaults:
    """The options of a task, with their defaults: the attributes of `onejob.Task` besides Celery's."""

    unique_on: ClassVar[UniqueOn] = None
    lease: ClassVar[float | None] = None
    unique_until: ClassVar[str] = "finished"
    unique_for: ClassVar[UniqueFor] = None
    on_duplicate: ClassVar[str | None] = None
    max_wait: ClassVar[float | None] = None
    permanent_for: ClassVar[tuple[type[Exception], ...]] = ()
    webhook_url: ClassVar[str | None] = None
    expose: ClassVar[bool] = False
    requires_key: ClassVar[bool] = False
    typed: ClassVar[bool] = False
    capture_logging: ClassVar[bool] = False
    tags: ClassVar[Sequence[str]] = ()
    limits: ClassVar[Sequence[Limit]] = ()
    schedule: ClassVar[Any] = None


TASK_OPTIONS = tuple(name for name in vars(TaskDefaults) if not name.startswith("__"))
FLAGS = tuple(name for name in TASK_OPTIONS if vars(TaskDefaults)[name] is False)
"""The options that are True or False."""
CELERY_OPTIONS = frozenset(
    "autoretry_for base compression delivery_mode dont_autoretry_for exchange lazy pydantic pydantic_context "
    "pydantic_dump_kwargs pydantic_strict queue retry_backoff retry_backoff_max retry_jitter retry_kwargs routing_key "
    "shared store_eager_result".split()
)
"""The options of Celery's `app.task` that are no attributes of Celery's task class."""
CALL_OPTIONS = ("session", "idempotency_key", "webhook_url", "task_id", "tags", "on_duplicate")
"""The options of a submission that are no options of its message."""
SETTINGS = frozenset(
    [f"onejob_{name}" for name in NAMES] + [f"onejob_webhook_{name}" for name in WebhookSettings.__dataclass_fields__]
)
REMOVED = {
    "onejob_heartbeat": "a worker renews a lease every third of it, and at least every 10 s: set onejob_lease",
    "onejob_sweep": "a worker sweeps every second: remove it",
    "onejob_depth_limit": "arguments and results are nested at most 64 levels deep: remove it",
    "onejob_log_jobs": "the level of a logger decides: logging.getLogger('onejob.jobs').setLevel(logging.WARNING)",
    "onejob_log_json": "the formatter of a handler decides: use onejob.logs.JsonFormatter in Celery's signals "
    "after_setup_logger and after_setup_task_logger",
    "onejob_metrics_address": "it is a part of the port: onejob_metrics_port = '0.0.0.0:9100'",
    "onejob_metrics_interval": "a process adds its counts to the totals every 2 s: remove it",
    "onejob_share_old_locks": "it is an option of the shim: install(share_old_locks=True), or the attribute "
    "share_old_locks = True of Singleton or QueueOnce",
    "onejob_silence": "a worker that hears nothing from its broker looks into the ledger after 15 s: remove it",
    "onejob_webhook_schedule": "a webhook has ten attempts in three and a half days: remove it",
    "onejob_webhook_source": "the source of an event is 'urn:onejob:' and the namespace: set onejob_namespace",
}
"""The names of settings for things that are fixed, derived or set elsewhere, each with the remedy."""
FOREIGN = {
    "raise_on_duplicate": "on_duplicate='raise' does that; leave it out for the default, on_duplicate='attach'",
    "lock_expiry": "there is no lock: a run has a lease, which its worker renews and `lease` sets",
    "once": "its keys are `unique_on`; graceful is the default, and on_duplicate='raise' raises; timeout is not needed",
    "unlock_before_run": "unique_until='started' does that",
    "heimdall": "its key is `unique_on`; its locks need no timeouts, because a worker renews the lease of a run",
    "unique_key": "`unique_on` does that",
}
"""The options of other libraries for unique tasks (celery-singleton, celery-once, ...), and their replacements."""
OWN_NAMES = ("type",)
"""The names of users' own attributes that resemble the name of an option."""
SIMILAR = 0.8
"""The least similarity (of `difflib`) of a misspelt name, which is at most one character longer or shorter."""


def check_setting_names(conf: Any) -> None:
    """Raise `ConfigurationError` for a setting `onejob_...` in Celery's configuration that does not exist."""
    conf = getattr(conf, "data", conf)  # a configuration that is loaded now does not know its prefix
    prefix = getattr(conf, "prefix", None) or ""
    for key in map(str, conf):
        in_namespace = bool(prefix) and key.startswith(prefix)
        name = key.removeprefix(prefix).lower()
        is_ours = name.startswith("onejob_") and (in_namespace or not prefix or key.islower())
        if is_ours and name not in SETTINGS:
            raise ConfigurationError(f"there is no setting {key}{hint_for_setting(name)}")
        if name in SETTINGS and name not in conf:
            msg = f"the setting {key} is not read: write {prefix + name.upper() if prefix else name}"
            raise ConfigurationError(msg)


def hint_for_setting(name: str) -> str:
    """Return the remedy for the name of an unknown setting, in lower case; "" if it resembles no other name."""
    near = next(iter(get_close_matches(name, sorted((*SETTINGS, *REMOVED)), n=1)), "")
    if near in REMOVED:
        return f"{'' if near == name else f', and {near} is none either'}: {REMOVED[near]}"
    return f": did you mean {near}?" if near else ""


def check_task_options(name: str, task: type, base: type, foreign: frozenset[str] = frozenset()) -> None:
    """Raise `ConfigurationError` for an attribute of a task's class that looks like a misspelt or a foreign option.

    Known are the attributes of `base`, which is `onejob.Task`, and another library's options in `foreign`.
    """
    known = foreign.union(dir(base), OWN_NAMES)  # `hasattr` would bind the class to the current app
    check_option_names(f"task {name}", (each for each in attributes_of(task, base) if each not in known), TASK_OPTIONS)


def check_option_names(where: str, options: Iterable[str], names: Collection[str] = (*TASK_OPTIONS, "unique")) -> None:
    """Raise `ConfigurationError` for the name of a task's option that is misspelt, or another library's."""
    for option in options:
        if (hint := _hint(option, names)) is not None:
            raise ConfigurationError(f"{where} has no option {option}{hint}")


def check_definition_names(name: str, options: Iterable[str], base: type) -> None:
    """Raise `ConfigurationError` for an option of `onejob.task` that neither `base` nor Celery has."""
    for option in options:
        if option not in CELERY_OPTIONS and not hasattr(base, option):
            hint = _hint(option, TASK_OPTIONS) or ". An attribute of your own belongs in a class: base=..."
            raise ConfigurationError(f"task {name} has no option {option}{hint}")


def check_call_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentsError` for an unknown option that is no stamp, an option of a task, or an empty stamp."""
    stamps = options.get("stamped_headers") or ()
    for option in options:
        error = _call_error(option)
        if error is not None and option not in stamps:
            raise InvalidArgumentsError(error)
    for stamp in stamps:
        if options.get(stamp) is None:
            raise InvalidArgumentsError(f"stamped_headers={stamps!r:.100} is not complete: {stamp} has no value")
    for option in OF_ONE_PROCESS:
        if options.get(option) is not None:
            raise InvalidArgumentsError(
                f"{option}={options[option]!r:.100} is not kept: any process may send the job's message, to the app's "
                "broker, and as `task_routes` or the option `queue` say"
            )
    if "tags" in options:
        merge_tags((), options["tags"])


OF_ONE_PROCESS = ("router", "connection")
"""The options of Celery's `apply_async` whose values exist only in the calling process."""
TAG_COUNT, TAG_LENGTH = 10, 64


def merge_tags(own: tuple[str, ...], given: object) -> tuple[str, ...]:
    """Return the tags of a task and the further `given` tags (None: none). Raises `InvalidArgumentsError`."""
    if given is None:
        return own
    tags = (
        tuple(dict.fromkeys([*own, *given])) if isinstance(given, list | tuple) and all(map(_is_tag, given)) else None
    )
    if tags is None or len(tags) > TAG_COUNT:
        own_count = f", with the {len(own)} of the task" if own else ""
        raise InvalidArgumentsError(
            f"tags={given!r:.500} is not a list of tags: write at most {TAG_COUNT}{own_count}, each of 1 to "
            f"{TAG_LENGTH} printable characters without a space at an end"
        )
    return tags


def _is_tag(given: object) -> bool:
    return isinstance(given, str) and 1 <= len(given) <= TAG_LENGTH and given.isprintable() and given == given.strip()


MAX_PRIORITY = 255
DELIVERY_MODES = ("transient", "persistent", 1, 2)


def is_priority(given: object) -> bool:
    """Return whether brokers accept a value as the priority of a message."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MAX_PRIORITY


def _is_of(*kinds: type) -> Callable[[object], bool]:
    return lambda given: isinstance(given, kinds) and not isinstance(given, bool)


MESSAGE_OPTIONS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "priority": (is_priority, f"a priority: write an integer from 0 to {MAX_PRIORITY}"),
    "delivery_mode": (
        lambda given: type(given) in {int, str} and given in DELIVERY_MODES,
        "a delivery mode: write 'persistent' or 'transient'",
    ),
    "headers": (_is_of(Mapping), "a mapping"),
    "queue": (_is_of(str, Queue), "the name of a queue, or a kombu.Queue"),
    "exchange": (_is_of(str, Exchange), "the name of an exchange, or a kombu.Exchange"),
    "routing_key": (_is_of(str), "text"),
    "serializer": (_is_of(str), "the name of a serializer"),
    "time_limit": (_is_of(int, float), "a number of seconds"),
    "soft_time_limit": (_is_of(int, float), "a number of seconds"),
}
"""The checks of the values of a message's options, each with the allowed values in words."""


def check_option_values(options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentsError` for a value of a message's option, of a task or a call, that brokers cannot use."""
    for name, (is_valid, expected) in MESSAGE_OPTIONS.items():
        given = options.get(name)
        if given is not None and not is_valid(given):
            raise InvalidArgumentsError(f"{name}={given!r:.100} is not {expected}")


@lru_cache(maxsize=256)
def _call_error(option: str) -> str | None:
    if option in TASK_OPTIONS and option not in CALL_OPTIONS:
        return f"{option} is an option of a task, not of a submission: set it in @app.task(...)"
    hint = _hint(option, (*CALL_OPTIONS, *TASK_OPTIONS))
    return None if hint is None else f"a submission has no option {option}{hint}"


def attributes_of(task: type, base: type) -> Iterator[str]:
    """Yield the options of the decorator, and the attributes of the user's classes that are not methods."""
    for kind in task.__mro__:
        if kind in base.__mro__:
            continue
        is_decorated = "__wrapped__" in vars(kind)
        for option, value in vars(kind).copy().items():  # Celery adds to it when another thread uses the task first
            is_method = isinstance(value, FunctionType | classmethod | staticmethod | property)
            if not option.startswith("_") and (is_decorated or not is_method):
                yield option


def _hint(option: str, known: Collection[str]) -> str | None:
    """Return the remedy for an unknown option; None for a known option, or if it resembles none."""
    if option in known:
        return None
    if option in FOREIGN:
        return f", which is another library's: {FOREIGN[option]}"
    similar = similar_name(option, known)
    return f": did you mean {similar}?" if similar else None


def similar_name(option: str, known: Collection[str]) -> str:
    """Return the known name that an option is, or is a misspelling of; "" for none."""
    near = [name for name in known if abs(len(name) - len(option)) <= 1]
    return next(iter(get_close_matches(option, sorted(near), n=1, cutoff=SIMILAR)), "")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question with the known name that is most like a given name; "" for none."""
    found = get_close_matches(name, sorted(known), n=1)
    return f": did you mean {found[0]}?" if found else ""


def checked_limits(task: str, given: Any) -> tuple[Limit, ...]:
    """Return the limits of a task. Raises `ConfigurationError` for what is no list of limits of different names."""
    if not isinstance(given, list | tuple) or not all(isinstance(each, Limit) for each in given):
        raise ConfigurationError(f"limits of task {task} must be a list of onejob.Limit(...), not {given!r:.200}")
    names = [each.name for each in given]
    if len(set(names)) < len(names) or len(names) > KEY_COUNT:
        raise ConfigurationError(
            f"task {task} has the limits {', '.join(names)}: write at most {KEY_COUNT}, each with a name of its own"
        )
    return tuple(given)


def check_schedule(task: str, given: Any) -> None:
    """Raise `ConfigurationError` unless the `schedule` of a task is Celery's, a number of seconds, or an entry."""
    if isinstance(given, dict):
        unknown = set(given) - {"schedule", "args", "kwargs", "options", "relative"}
        given = None if unknown else given.get("schedule")
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    is_interval = isinstance(given, timedelta) and given > timedelta(0)
    if not (is_number or is_interval or isinstance(given, BaseSchedule)):
        raise ConfigurationError(
            f"schedule of task {task} must be a schedule of Celery, such as crontab(hour=3, minute=0), a number of "
            f"seconds, a timedelta, or an entry as in beat_schedule without its task, not {given!r:.200}"
        )
