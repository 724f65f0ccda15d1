"""The options of a task's definition, checked and resolved when Celery binds the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, getattr_static, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, unwrap
from types import FunctionType
from typing import Any, Protocol, Self

from celery import Celery
from celery import Task as CeleryTask

from onejob.celery import option_declarations as option_names
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.typed import TypedBody
from onejob.config import Settings
from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError, PermanentError
from onejob.jobs.durations import check_seconds
from onejob.jobs.limits import Limit
from onejob.jobs.model import Admission, IdentityHold, JobRow
from onejob.jobs.on_duplicate import ConflictPolicy, conflict_policy_of
from onejob.jobs.text_limits import TextLimits
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.uniqueness.identity import Identifier, UniqueOn
from onejob.uniqueness.window import UniqueFor, Window, window_of
from onejob.webhooks.settings import WebhookSettings, check_url

_DUMP = "_dump_pydantic_arguments"
"""The attribute that Celery gives to a task with `pydantic=True`."""


class BoundTask(Protocol):
    """The part of a bound `onejob.Task` that the other modules use: Celery's attributes, and the resolved options."""

    name: str
    app: Celery
    backend: Any
    ignore_result: bool
    request: Any
    AsyncResult: Callable[[str], Any]
    shadow_name: Callable[[Any, Any, Any], str | None]
    signature_from_request: Callable[[Any], Any]
    _get_exec_options: Callable[[], dict[str, Any]]

    @property
    def _onejob(self) -> TaskOptions: ...

    _onejob_has_own_rule: bool

    def _onejob_admit(self, app_state: Any, prepared: Any, *, session: Any, producer: Any) -> Admission | Exception: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of one `onejob.Task`, checked, with the app's settings as defaults."""

    task: str
    identifier: Identifier
    conflict_policy: ConflictPolicy
    """The conflict policy, resolved from `on_duplicate` and `max_wait`."""
    attaches_by_default: bool
    """Whether the task sets no `on_duplicate`."""
    unique_on: UniqueOn
    unique_until: str
    unique_for: UniqueFor
    window: Window | None
    lease: float
    permanent: tuple[type[Exception], ...]
    """The exceptions after which a job fails without a retry."""
    webhook_url: str | None
    expose: bool
    requires_key: bool
    settings: Settings
    limits: tuple[Limit, ...]
    """How many similar jobs run at once, or how fast they start."""
    text_limits: TextLimits
    """The limits of the size and the depth of arguments and results."""
    names_shadow: bool
    """Whether the task has a `shadow_name` of its own, which may depend on the arguments."""
    typed: TypedBody | None
    """The converter of models in the arguments and the result, for a `typed` task."""
    converts: bool
    """Whether arguments may be models, which are converted before they are stored."""
    is_coroutine: bool
    """Whether the body is `async def`."""
    may_be_coroutine: bool
    """Whether the body, or a function that it decorates, is `async def`: calls may return coroutines."""
    capture_logging: bool
    tags: tuple[str, ...]
    schedule: Any
    """The schedule by which beat submits the task; None: beat does not."""

    @classmethod
    def of(cls, task: Any, app: Celery) -> Self:
        """Return the options of a task's class. Raises `ConfigurationError` for options that cannot work."""
        # `register_task` gives this name to the instance only.
        name, app_state = str(task.name or app.gen_task_name(task.__name__, task.__module__)), app_state_of(app)
        settings = app_state.settings
        if task.lease is not None:
            check_seconds(f"lease of task {name}", task.lease)
        body, bound = body_of(task)
        window, conflict_policy, identifier = resolve_definition(
            name, task, body, bound=bound, limits=settings.limits, checked=task.typing is not False
        )
        try:  # the defaults of options of calls, with which jobs are submitted
            tags = option_names.merge_tags((), task.tags)
            limits = option_names.checked_limits(name, task.limits)
            option_names.check_option_values({each: getattr(task, each, None) for each in option_names.MESSAGE_OPTIONS})
        except InvalidArgumentsError as error:
            raise ConfigurationError(f"task {name}: {error}") from None
        for limit in limits:
            for selector in (limit.by, limit.weight):
                if isinstance(selector, str) or callable(selector):
                    identifier.check_selector(f"limit {limit.name}", selector)
        if window is not None:
            settings.check_window(name, window.longest)
        typed = TypedBody(name, body, identifier.signature) if task.typed else None
        fields = cls.__dataclass_fields__
        values = {option: getattr(task, option) for option in option_names.TASK_OPTIONS if option in fields}
        values |= {
            "window": window,
            "conflict_policy": conflict_policy,
            "identifier": identifier,
            "attaches_by_default": task.on_duplicate is None,
            "lease": task.lease or settings.lease,
            "permanent": (PermanentError, InvalidPayloadError, *task.permanent_for),
            "names_shadow": task.shadow_name is not CeleryTask.shadow_name,
            "typed": typed,
            "is_coroutine": iscoroutinefunction(body),
            "may_be_coroutine": iscoroutinefunction(unwrap(body)),
            "tags": tags,
            "limits": limits,
            "converts": getattr(task, _DUMP, None) is not None if typed is None else bool(typed.codecs),
        }
        options = cls(task=name, settings=settings, text_limits=settings.limits, **values)
        app_state.add_limits(name, limits)
        _check_exposed(options)
        _check_webhook(options, app_state.webhooks)
        return options

    def hold_of(self, job: JobRow, limits: list[Any] | None) -> IdentityHold | None:
        """Return how long a job holds its identity after its success; None: not at all. `limits`: from its message."""
        return None if self.window is None else self.window.hold(job.created_at, limits)


def tasks_of(app: Celery) -> dict[str, BoundTask]:
    """Return the tasks of an app that are of class `onejob.Task`, by name."""
    tasks: Mapping[str, Any] = app.tasks
    return {name: task for name, task in sorted(tasks.items()) if hasattr(task, "_onejob")}


def resolve_definition(
    name: str, given: Any, body: Any, *, bound: bool, limits: TextLimits, checked: bool = True
) -> tuple[Window | None, ConflictPolicy, Identifier]:
    """Return window, conflict policy and identifier of the `given` options, of any app. Raises `ConfigurationError`."""
    permanent = given.permanent_for
    if not isinstance(permanent, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in permanent
    ):
        msg = f"permanent_for of task {name} must be a tuple of exception classes, not {permanent!r}"
        raise ConfigurationError(msg)
    if given.schedule is not None:
        option_names.check_schedule(name, given.schedule)
    for option in option_names.FLAGS:
        if not isinstance(flag := getattr(given, option), bool):
            raise ConfigurationError(f"{option} of task {name} must be True or False, not {flag!r}")
    if given.typed and getattr(given, _DUMP, None) is not None:
        msg = f"task {name} has typed=True and pydantic=True, which both convert models: leave one out"
        raise ConfigurationError(msg)
    if getattr(given, _DUMP, None) is not None and iscoroutinefunction(unwrap(body)):
        msg = f"the body of task {name} is `async def`, whose result pydantic=True does not convert: write typed=True"
        raise ConfigurationError(msg)
    if isasyncgenfunction(body) or isgeneratorfunction(body):
        raise ConfigurationError(f"the body of task {name} is a generator: a job has one result, so return a value")
    return (
        window_of(name, given.unique_until, given.unique_for),
        conflict_policy_of(name, given.on_duplicate, given.max_wait, given.unique_until, given.unique_for),
        Identifier(name, body, given.unique_on, bound=bound, limits=limits, checked=checked),
    )


def _check_exposed(options: TaskOptions) -> None:
    if not options.expose:
        return
    for parameter in options.identifier.signature.parameters.values():
        if parameter.kind not in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}:
            raise ConfigurationError(
                f"task {options.task} is exposed, so each of its arguments needs a name: "
                f"{str(parameter).partition(':')[0]} has none. Name the arguments, or drop expose"
            )


def _check_webhook(options: TaskOptions, settings: WebhookSettings) -> None:
    """Raise `ConfigurationError` for a webhook that could not be sent, or a task named like the webhook jobs."""
    if options.task == WEBHOOK_TASK:
        msg = f"{WEBHOOK_TASK} is the reserved task name of webhook jobs: give the task another name"
        raise ConfigurationError(msg)
    if options.webhook_url is None:
        return
    settings.check_usable()
    try:
        check_url(options.webhook_url, settings)
    except InvalidArgumentsError as error:
        raise ConfigurationError(f"task {options.task}: {error}") from error


def body_of(task: Any) -> tuple[Any, bool]:
    """Return the function that the user decorated, or `run`, and whether its first parameter is the task itself."""
    decorated = task.__dict__.get("__wrapped__")
    if decorated is None:
        return task.run, isinstance(getattr_static(task, "run"), FunctionType)
    return (decorated.__func__, False) if isinstance(decorated, staticmethod) else (decorated, True)
