"""A call of a task, with its caller; `prepare` checks the call and returns the submission that the ledger gets.

Every way to submit makes a `Call`: `apply_async` and `submit_many`, coroutines, the HTTP API, edits of dead letters,
the check for duplicates, messages that others have sent, and the test kit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Self

from celery import Celery, Signature

from onejob.celery.app_state import AppState
from onejob.celery.messages.context import NO_CONTEXT, headers_in
from onejob.celery.messages.payload import SUBMITTER_HEADER, encode, loads, to_json
from onejob.celery.messages.routing import Plan, is_unpublishable
from onejob.celery.option_declarations import check_call_options, check_option_values, merge_tags
from onejob.celery.submission.canvas import link_key, part_identity
from onejob.celery.submission.options import BoundTask, TaskOptions
from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError, KeyRequiredError, OneJobError
from onejob.jobs.limits import first_park, uses_of
from onejob.jobs.model import Admission, Submission
from onejob.jobs.on_duplicate import call_policy_of
from onejob.jobs.submitter import NAME_LIMIT, NO_QUOTAS, NOBODY, SUBMITTER, Submitter
from onejob.jobs.transitions import new_id, new_nonce
from onejob.observability import tracing
from onejob.uniqueness.identity import value_at
from onejob.webhooks.settings import check_url

PROMISED = "reply_to"
"""The option that `Signature.freeze` adds, which returns the id of a call before it is submitted."""
MAX_DELAY = 100 * 366 * 86_400.0
"""Seconds from now within which a job must be due, or expire: a hundred years."""
MAX_RETRIES = 2**31 - 1
"""The largest number that every store has in a column of integers."""


_TEXT = "a datetime, or ISO 8601 text"
TIMES: Mapping[str, tuple[Any, str]] = {
    "countdown": (int | float, "a number of seconds"),
    "eta": (datetime | str, _TEXT),
    "expires": (int | float | datetime | str, f"a number of seconds, {_TEXT}"),
}
"""The types of the options that name a time, each with the allowed values in words."""


class Caller(NamedTuple):
    """The submitter of a call, and the task in whose run it is made; None: in no run."""

    submitter: Submitter
    parent: Any

    @classmethod
    def of(cls, app: Celery) -> Self:
        """Return the caller in this context; without a submitter, the submitter of the run's job, if it has own jobs.

        So all members of a canvas have the submitter of its first job; they use no quota, as it was admitted whole.
        """
        submitter, parent = SUBMITTER.get(), app.current_worker_task
        if parent is None or submitter.name:
            return cls(submitter, parent)
        name = (parent.request.headers or {}).get(SUBMITTER_HEADER)
        return cls(Submitter(str(name), own_jobs=True, quotas=NO_QUOTAS) if name else submitter, parent)


class Call(NamedTuple):
    """A call of a task, from any entry point: its arguments and options, before any check."""

    task: BoundTask
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    """The options of Celery's `apply_async`."""
    source: str = "apply_async"
    """The entry point, which becomes the job's `source`."""
    task_id: str | None = None
    key: str | None = None
    on_duplicate: str | None = None
    """The conflict policy of this call, `attach` or `raise`; None: the task's own."""
    webhook_url: str | None = None
    identity: str | None = None
    """The identity in place of the one that the arguments make: for a tick of the beat schedule."""
    is_message: bool = False
    """Whether the options come from a message and are complete, so that neither the task nor the app adds any."""
    context: Mapping[str, Any] | None = None
    """The headers that the app adds; None: they are taken now."""
    check_answer: Callable[[Admission], object] | None = None
    """The function that raises if the caller may not get a job as the answer, called before it gets a webhook."""


def is_promised(call: Call, *, canvas: bool) -> bool:
    """Return whether nobody could handle the error of a rejected call: others have its id, or a worker makes the call.

    The sender of a message or a canvas has the id; the last task of a chain has no option of a canvas, but was frozen.
    The worker that has run the job before a link calls the link, with the id of that job.
    """
    return canvas or call.is_message or PROMISED in call.options or is_link(call)


def is_link(call: Call) -> bool:
    """Return whether a worker makes the call, at the end of the job that the call names as its parent."""
    return call.options.get("parent_id") is not None


# --- from a call to its submission ------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A call, the submission that it becomes, and the task in whose run it is made; None: in no run."""

    call: Call
    submission: Submission
    parent: Any = None


ENTRY_HEADER = "onejob_entry"
"""The header by which a call in the process of Celery's beat names its entry."""


def is_from_beat(headers: object) -> bool:
    """Return whether a message or a call has a header of beat: of Celery's, from 5.7 on, or of onejob's."""
    return isinstance(headers, dict) and bool(headers.get(ENTRY_HEADER) or headers.get("celery_beat_task"))


def prepare(app_state: AppState, call: Call) -> Prepared:
    """Check a call for all mistakes of a caller, and return the call with its submission; nothing is stored.

    Raises `InvalidArgumentsError` (a TypeError), `InvalidPayloadError` (a ValueError), `KeyRequiredError`,
    `ConfigurationError` for webhooks that are not configured, and Celery's error for a message that it cannot send.
    """
    caller = Caller.of(call.task.app)
    if call.options:
        check_call_options(call.options)
    if call.task._onejob.requires_key:
        check_key(call)
    if call.webhook_url is not None:
        _check_webhook_url(app_state, caller, call.webhook_url)
    if call.task_id is not None:
        _check_task_id(app_state, caller, call.task_id)
    return Prepared(call, _build(app_state, call, caller)[0], caller.parent)


def prepare_items(app_state: AppState, call: Call, items: Iterable[object]) -> list[Prepared]:
    """Return the items of `submit_many` as calls with the options of `call`. Raises as `prepare`, naming the item."""
    check_items(app_state, call)
    caller, shared = Caller.of(call.task.app), None
    if not app_state.contexts.is_added(call.task):
        call = call._replace(context=NO_CONTEXT)
    prepared: list[Prepared] = []
    for number, item in enumerate(items):
        args, kwargs = parse_item(call.task, number, item)
        one = call._replace(args=args, kwargs=kwargs)
        try:
            submission, terms, _ = _build(app_state, one, caller, shared)
        except (InvalidArgumentsError, InvalidPayloadError) as error:
            raise type(error)(f"item {number}: {error}") from error
        prepared.append(Prepared(one, submission, caller.parent))
        shared = terms if terms.plan.shared and not call.task._onejob.names_shadow else None
    return prepared


def build(app_state: AppState, call: Call, caller: Caller | None = None) -> Submission:
    """Return the submission of a call without checks of its caller, by default this context's. Raises as `prepare`."""
    return _build(app_state, call, caller or Caller.of(call.task.app))[0]


def build_described(app_state: AppState, call: Call, caller: Caller) -> tuple[Submission, str]:
    """Return the submission of a call, and the text whose hash its identity is. Raises as `prepare`."""
    submission, _, described = _build(app_state, call, caller)
    return submission, described


@contextmanager
def unique_on_reported() -> Iterator[None]:
    """Raise `InvalidArgumentsError` for any exception of a task's `unique_on` function, without its text."""
    try:
        yield
    except OneJobError:
        raise
    except Exception as error:
        if is_unpublishable(error):
            raise
        raise InvalidArgumentsError(f"unique_on failed on these arguments: {type(error).__name__}") from error


class _Terms(NamedTuple):
    """The terms of a call: the values that follow from its options."""

    plan: Plan
    options: str
    """The options of the message, as JSON."""
    delay: float
    expires_in: float | None
    retries: int
    tag_lines: str | None


def _build(
    app_state: AppState, call: Call, caller: Caller, shared: _Terms | None = None
) -> tuple[Submission, _Terms, str]:  # fmt: skip
    """Return the submission of a call, its terms, and the text whose hash its identity is.

    `shared`: the terms of another call, which are equal.
    """
    definition, submitter = call.task._onejob, caller.submitter
    if call.task.name != definition.task:
        raise ConfigurationError(
            f"task {call.task.name} has its name from an instance, and its class is the task {definition.task}: "
            "give each task a class of its own"
        )
    scope = None if submitter is NOBODY else submitter.scope
    args, kwargs = call.args, call.kwargs
    if definition.converts:
        args, kwargs = dump_models(call.task, args, kwargs, call.options)
    terms = shared or _terms_of(app_state, call, caller, args, kwargs, scope)
    plan, settings, conflict_policy = terms.plan, definition.settings, definition.conflict_policy
    if call.on_duplicate is not None:
        conflict_policy = call_policy_of(definition.task, call.on_duplicate)
    job_id, context = call.task_id or new_id(), call.context
    if context is None:
        has_own = not call.is_message and app_state.contexts.is_added(call.task)
        context = app_state.contexts.take(call.task, job_id, args, kwargs, plan) if has_own else NO_CONTEXT
    if conflict_policy.replaces and call.options.get("headers"):  # whose arguments go with them
        context = headers_in(plan.options, context)
    headers = headers_in(plan.options, context) if definition.identifier.has_headers else NO_CONTEXT
    identity, fingerprint, described = definition.identifier.both(args, kwargs, scope, headers)
    if plan.canvas:
        identity = part_identity(app_state.ledger, call.options, identity)
    key = call.key
    if definition.requires_key and key is None and call.task_id is None and is_link(call):
        key = link_key(app_state.ledger, str(call.options["parent_id"]), fingerprint)
    window = None if definition.window is None else definition.window.limits_at(time.time())
    payload = encode(definition.task, args, kwargs, definition.text_limits, context, window)
    if plan.checked_options is not None:
        app_state.routing.check_message(payload, plan.checked_options)
    limit_keys, parked_on = None, None
    if definition.limits:
        app_state.define_limits()
        limit_keys = limit_keys_of(definition, args, kwargs)
        parked_on = first_park(limit_keys) if terms.delay <= 0 else None
    submission = Submission(
        id=job_id, task=definition.task, identity=call.identity or identity, fingerprint=fingerprint,
        nonce=new_nonce(), payload=payload, options=terms.options, route=plan.route, priority_rank=plan.priority_rank,
        lease=definition.lease, delay=terms.delay, expires_in=terms.expires_in, retries=terms.retries,
        follows=plan.canvas or call.task_id is not None, canvas=plan.canvas,
        key=None if key is None else submitter.scoped_key(key),
        key_for=settings.key_retention, source=call.source, submitter=submitter.name, host=plan.host,
        rejects=conflict_policy.rejects and not is_promised(call, canvas=plan.canvas),
        replaces=conflict_policy.replaces, queue_next=conflict_policy.queue_next,
        max_wait=conflict_policy.max_wait if terms.delay > 0 else 0.0, tag_lines=terms.tag_lines,
        budgets=submitter.budgets, limit_keys=limit_keys, parked_on=parked_on,
        charges=() if submitter is NOBODY else settings.quotas_of(submitter).charges(submitter.name, identity),
    )  # fmt: skip
    return submission, terms, described


def limit_keys_of(definition: TaskOptions, args: Any, kwargs: Any) -> str:
    """Return the keys of the limits of a call as a job keeps them. Raises as `uses_of` does."""
    arguments = definition.identifier.arguments(args, kwargs)
    return uses_of(definition.limits, arguments, partial(value_at, arguments))


def _terms_of(
    app_state: AppState, call: Call, caller: Caller, args: Any, kwargs: Any, scope: str | None
) -> _Terms:  # fmt: skip
    options, tags = merge_options(call, args, kwargs, caller.parent), call.task._onejob.tags
    if "tags" in options:
        tags = merge_tags(tags, options["tags"])
    delay, expires_in, retries = times_of(options)
    own: dict[str, Any] = {}  # not those of its plan
    if "parent_id" in options or "root_id" in options:
        own = {name: options[name] for name in ("root_id", "parent_id") if options.get(name)}
    if tracing.tracer is not tracing.NO_TRACER:
        own = {**tracing.tracer.context(), **own}
    plan = app_state.routing.plan(call.task, args, kwargs, options, scope)
    return _Terms(
        plan, to_json(loads(plan.options) | own) if own else plan.options, delay,
        expires_in, retries, "\n".join(tags) if tags else None,
    )  # fmt: skip


# --- checks -----------------------------------------------------------------------------------------------------------


def check_eager(call: Call) -> None:
    """Check an eager call by itself, without a ledger. Raises as `prepare` does."""
    check_call_options(call.options)
    check_option_values(call.options)
    times_of(call.options)
    check_key(call)
    if call.on_duplicate is not None:
        call_policy_of(str(call.task.name), call.on_duplicate)
    if call.task_id is not None:
        _check_id(call.task_id)


def check_key(call: Call) -> None:
    """Raise `KeyRequiredError` if the task requires an idempotency key, for a call without key or id, but a link."""
    if call.task._onejob.requires_key and call.key is None and call.task_id is None and not is_link(call):
        raise KeyRequiredError(str(call.task.name))


def _check_webhook_url(app_state: AppState, caller: Caller, url: str) -> None:
    app_state.webhooks.check_usable(caller.submitter.name)
    check_url(url, app_state.webhooks)


def _check_task_id(app_state: AppState, caller: Caller, task_id: str) -> None:
    """Raise `InvalidArgumentsError` for an invalid id, and for another submitter's job if the caller has own jobs."""
    _check_id(task_id)
    if not caller.submitter.own_jobs:
        return
    job = app_state.ledger.get_or_none(task_id)
    if job is not None and job.submitter != caller.submitter.name:
        msg = f"task_id {task_id!r} cannot be used for a new job: omit it, or choose a random one"
        raise InvalidArgumentsError(msg)


def _check_id(task_id: object) -> None:
    if not isinstance(task_id, str) or not 0 < len(task_id) <= NAME_LIMIT or not task_id.isprintable():
        msg = (
            f"task_id={task_id!r:.100} is not the id of a job: write printable text, at most {NAME_LIMIT} characters, "
            "such as str(uuid.uuid4())"
        )
        raise InvalidArgumentsError(msg)


def check_items(app_state: AppState, call: Call) -> None:
    """Check the options of `submit_many`. Raises as `prepare`, and for options that only one submission can have."""
    if call.task._onejob.requires_key:
        name = call.task.name
        msg = f"task {name} requires an idempotency key, which identifies one submission: use apply_async for each"
        raise InvalidArgumentsError(msg)
    for name in ("task_id", "idempotency_key"):
        if call.options.get(name) is not None:
            raise InvalidArgumentsError(f"{name} identifies one submission, not many: use apply_async for each")
    check_call_options(call.options)
    if call.webhook_url is not None:
        _check_webhook_url(app_state, Caller.of(call.task.app), call.webhook_url)


# --- arguments and options ------------------------------------------------------------------------------------------


def checked_arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call. Raises `InvalidArgumentsError` unless they are a list and a mapping, or None."""
    if args is not None and not isinstance(args, list | tuple):
        msg = f"args={args!r:.100} is no list of positional arguments: write args=[...], and those with names in kwargs"
        raise InvalidArgumentsError(msg)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidArgumentsError(f"kwargs={kwargs!r:.100} is no dict of arguments by name")
    return tuple(args or ()), dict(kwargs or {})


def parse_item(task: BoundTask, number: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the args and kwargs in one item of `submit_many`. Raises `InvalidArgumentsError`."""
    if isinstance(item, tuple | list):
        return tuple(item), {}
    if isinstance(item, dict) and not ("task" in item and isinstance(item, Signature)):
        return (), item
    if isinstance(item, Signature):
        if item["task"] != task.name or item["options"]:
            msg = f"item {number} is {item!r:.200}; as an item, a signature is one of {task.name} and has no options"
            raise InvalidArgumentsError(msg)
        return tuple(item["args"]), dict(item["kwargs"])
    msg = f"item {number} is {item!r:.200}; an item is a tuple of positional arguments or a dict of keyword arguments"
    raise InvalidArgumentsError(msg)


def dump_models(task: BoundTask, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return JSON for models in arguments of `typed` and `pydantic=True` tasks. Raises `InvalidArgumentsError`."""
    typed = task._onejob.typed
    if typed is not None:
        return typed.dump_arguments(args, kwargs) if typed.codecs else (args, kwargs)
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump is not None and options.get("serializer") != "pickle" else (args, kwargs)


def merge_options(call: Call, args: Any, kwargs: Any, parent: Any) -> Mapping[str, Any]:
    """Return all options of a call's message, with which any process can publish it; `parent`: the submitting task."""
    if call.is_message:
        return call.options
    task = call.task
    merged = {"ignore_result": task.ignore_result, **task._get_exec_options(), **call.options}  # noqa: SLF001 - Celery's
    if task._onejob.names_shadow:
        merged["shadow"] = merged.get("shadow") or task.shadow_name(args, kwargs, merged)
    if parent is not None:
        merged["root_id"] = merged.get("root_id") or parent.request.root_id or parent.request.id
        merged["parent_id"] = merged.get("parent_id") or parent.request.id
    return merged


# --- times ------------------------------------------------------------------------------------------------------


def times_of(options: Mapping[str, Any]) -> tuple[float, float | None, int]:
    """Return the seconds until a job is due, the seconds until it expires, and its retries. Raises as `delay_of`."""
    expires = options.get("expires")
    if expires is None and not (options.get("countdown") or options.get("eta") or options.get("retries")):
        return 0.0, None, 0
    return delay_of(options), None if expires is None else seconds_until(expires, "expires"), retries_of(options)


def delay_of(options: Mapping[str, Any]) -> float:
    """Return the seconds until a job with these options is due, at least 0. Raises as `seconds_until` does."""
    name = "countdown" if options.get("countdown") else "eta"
    when = options.get(name)
    return max(0.0, seconds_until(when, name)) if when else 0.0


def retries_of(options: Mapping[str, Any]) -> int:
    """Return how often a job with these options was retried. Raises `InvalidArgumentsError` for no such number."""
    retries = options.get("retries") or 0
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= MAX_RETRIES:
        msg = f"retries={retries!r:.100} is no number of retries: leave it out; max_retries is an option of the task"
        raise InvalidArgumentsError(msg)
    return retries


def seconds_until(when: Any, name: str) -> float:
    """Return the seconds to a Celery `countdown` (a number), `eta` (a datetime or ISO 8601 text) or `expires` (any).

    Raises `InvalidArgumentsError` with the option's `name` for anything else, and for what is beyond `MAX_DELAY`.
    """
    kinds, forms = TIMES[name]
    seconds = _seconds_until(when) if isinstance(when, kinds) and not isinstance(when, bool) else None
    if seconds is None:
        raise InvalidArgumentsError(f"{name}={when!r:.100} is no time: write {forms}")
    if not abs(seconds) <= MAX_DELAY:  # written so that it is true of NaN, too
        msg = f"{name}={when!r:.100} is not a valid time for a job: at most {MAX_DELAY:.0f} s from now"
        raise InvalidArgumentsError(msg)
    return seconds


def _seconds_until(when: float | str | datetime) -> float | None:
    """Return the seconds to a time, infinity if it is out of all ranges; None for a text that is no time."""
    if isinstance(when, int | float):
        return when
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return float((moment - datetime.now(UTC)).total_seconds())
    except OverflowError:  # its year in UTC is out of the range of `datetime`
        return math.inf
