"""Builds the submission of a call: its arguments and options, checked, encoded and resolved."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Signature
from celery import Task as CeleryTask

from onejob.celery.app_state import app_state_of
from onejob.celery.message import encode, with_parents
from onejob.celery.option_names import check_call_options
from onejob.celery.options import options_of
from onejob.celery.submitter import Caller
from onejob.errors import InvalidArgumentsError, InvalidPayloadError, KeyRequiredError
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_id, new_nonce
from onejob.observability import tracing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onejob.celery.options import BoundTask
    from onejob.celery.plan import SubmissionPlan

MAX_DELAY = 100 * 366 * 86_400.0
"""Seconds from now within which a job must be due, or expire: a hundred years."""


def build_submission(
    task: BoundTask, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any], *,
    plan: SubmissionPlan | None = None, caller: Caller | None = None, task_id: str | None = None,
    key: str | None = None, source: str = "apply_async", on_duplicate: str | None = None, pushes: bool = False,
) -> Submission:  # fmt: skip
    """Return the submission of a call, with its message if `pushes` and the store can. Raises as `apply_async` does.

    All tasks of the app are bound before, so that a misconfigured one raises its error now, and not after the job was
    stored.
    """
    app_state, task_options = app_state_of(task.app), options_of(task)
    submitter = (caller or Caller.of(task.app)).submitter
    limits, scope = app_state.settings.limits, submitter.scope
    quotas = app_state.settings.quotas_of(submitter)
    conflict_policy, delay = task_options.conflict_policy_for(on_duplicate), delay_of(options)
    identity, fingerprint = task_options.identifier.both(args, kwargs, scope)
    payload = encode(str(task.name), args, kwargs, limits)
    plan = plan or app_state.plans.find(task, args, kwargs, options, scope)
    if not plan.always_encodes:
        app_state.routing.check_message(payload, plan.sent_options)
    follows = plan.canvas or task_id is not None
    kind, job_id, retries = plan.kind, task_id or new_id(), options.get("retries") or 0
    parents = {name: options[name] for name in ("root_id", "parent_id") if options.get(name)}
    kept = {**parents, **trace} if (trace := tracing.tracer.context()) else parents
    message = None
    if pushes and delay <= 0 and app_state.publisher.store_pushes:
        message = partial(app_state.publisher.message_for, kind, job_id, payload, retries=retries, **parents)
    return Submission(
        id=job_id, task=kind.task, identity=identity, fingerprint=fingerprint, nonce=new_nonce(), payload=payload,
        options=with_parents(kind.options, kept) if kept else kind.options, route=kind.route,
        priority_rank=kind.priority_rank, lease=task_options.lease, delay=delay,
        expires_in=seconds_until(options.get("expires")), retries=retries, follows=follows, canvas=plan.canvas,
        key=None if key is None else submitter.scoped_key(key), key_for=app_state.settings.key_retention,
        source=source, submitter=submitter.name, host=plan.host, rejects=conflict_policy.rejects and not follows,
        replaces=conflict_policy.replaces, queues_next=conflict_policy.queues_next,
        max_wait=conflict_policy.max_wait if delay > 0 else 0.0, message=message,
        charges=quotas.charges(submitter.name, identity) if quotas else (),
    )  # fmt: skip


def check_key(task: BoundTask, key: str | None, task_id: str | None = None) -> None:
    """Raise `KeyRequiredError` if the task requires an idempotency key and the call has neither a key nor a task id."""
    if options_of(task).requires_key and key is None and task_id is None:
        raise KeyRequiredError(str(task.name))


def check_common(task: BoundTask, options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentsError` for options of `submit_many` that are valid for a single submission only."""
    if options_of(task).requires_key:
        msg = f"task {task.name} requires an idempotency key, which identifies one submission: use apply_async for each"
        raise InvalidArgumentsError(msg)
    for name in ("task_id", "idempotency_key"):
        if name in options:
            msg = f"{name} identifies one submission, not many: use apply_async for each"
            raise InvalidArgumentsError(msg)


def parse_item(task: BoundTask, number: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the args and kwargs in one item of `submit_many`. Raises `InvalidArgumentsError`."""
    if isinstance(item, dict):
        return _parse_signature(task, number, item) if "task" in item and isinstance(item, Signature) else ((), item)
    if isinstance(item, tuple | list):
        return tuple(item), {}
    msg = f"item {number} is {item!r:.200}; an item is a tuple of positional arguments or a dict of keyword arguments"
    raise InvalidArgumentsError(msg)


def _parse_signature(task: BoundTask, number: int, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if item["task"] != task.name or item["options"]:
        msg = f"item {number} is {item!r:.200}; as an item, a signature is one of {task.name} and has no options"
        raise InvalidArgumentsError(msg)
    return tuple(item["args"]), dict(item["kwargs"])


def dump_models(task: BoundTask, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return arguments without models: those of a `typed` task, and those of a `pydantic=True` task as Celery does.

    Raises `InvalidArgumentsError`, naming the field, for what does not fit the annotations of a `typed` task.
    """
    typed = options_of(task).typed
    if typed is not None:
        return typed.dump_arguments(args, kwargs) if typed.converts else (args, kwargs)
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump is not None and options.get("serializer") != "pickle" else (args, kwargs)


def merge_options(
    task: BoundTask, args: Any, kwargs: Any, options: Mapping[str, Any], caller: Caller, **own: Any
) -> dict[str, Any]:
    """Return all options of the message, so that any process can publish it later as this one would."""
    given = {name: value for name, value in own.items() if value is not None}
    merged = {"ignore_result": task.ignore_result, **task._get_exec_options(), **options, **given}  # noqa: SLF001 - Celery's
    if has_shadow_names(task):
        merged["shadow"] = merged.get("shadow") or task.shadow_name(args, kwargs, merged)
    if caller.parent is not None:
        request = caller.parent.request
        merged["root_id"] = merged.get("root_id") or request.root_id or request.id
        merged["parent_id"] = merged.get("parent_id") or request.id
    return merged


def has_shadow_names(task: BoundTask) -> bool:
    """Tell whether a task has a `shadow_name` of its own, which may depend on the arguments."""
    own: Any = task.__class__.shadow_name  # also of a proxy, as a task is before its first use
    return own is not CeleryTask.shadow_name


def prepare_submission(
    task: BoundTask,
    kwargs: Mapping[str, Any],
    *,
    source: str,
    args: Sequence[Any] = (),
    key: str | None = None,
    on_duplicate: str | None = None,
    **options: Any,
) -> Submission:
    """Return the submission of a call through an entry point (`source`) other than `apply_async`; store nothing.

    `on_duplicate` overrides the task's own for this call. Raises as `apply_async` does.
    """
    check_key(task, key)
    check_call_options(options)
    caller = Caller.of(task.app)
    args, kwargs = dump_models(task, tuple(args), dict(kwargs), options)
    merged = merge_options(task, args, kwargs, options, caller)
    return build_submission(
        task, args, kwargs, merged, caller=caller, key=key, source=source, on_duplicate=on_duplicate, pushes=True
    )


def build_item_submissions(
    task: BoundTask, items: Iterable[object], options: Mapping[str, Any], caller: Caller
) -> list[Submission]:
    """Return the submissions of the items of `submit_many`. Raises as `apply_async` does, with the item's number."""
    plans, submissions = app_state_of(task.app).plans, []
    merged: dict[str, Any] = {}
    plan: SubmissionPlan | None = None
    for number, item in enumerate(items):
        args, kwargs = parse_item(task, number, item)
        try:
            args, kwargs = dump_models(task, args, kwargs, options)
            if plan is None or not plan.shared or has_shadow_names(task):
                merged = merge_options(task, args, kwargs, options, caller)
                plan = plans.find(task, args, kwargs, merged, caller.submitter.scope)
            submissions.append(
                build_submission(
                    task, args, kwargs, merged, plan=plan, caller=caller, source="submit_many", pushes=True
                )
            )
        except (InvalidArgumentsError, InvalidPayloadError) as error:
            msg = f"item {number}: {error}"
            raise type(error)(msg) from error
    return submissions


def delay_of(options: Mapping[str, Any]) -> float:
    """Return the seconds until a job with these options is due, at least 0. Raises as `seconds_until` does."""
    return max(0.0, seconds_until(options.get("countdown") or options.get("eta")) or 0.0)


def seconds_until(when: Any) -> float | None:
    """Return the seconds to a Celery `countdown`, `eta` or `expires`: a number, a datetime or ISO 8601 text.

    Raises `InvalidArgumentsError` for a time farther away than `MAX_DELAY`, which not every calendar can represent.
    """
    if when is None:
        return None
    seconds = when if isinstance(when, int | float) else _seconds_until_datetime(when)
    if not abs(seconds) <= MAX_DELAY:  # written so that it is true of NaN, too
        msg = f"{when!r:.100} is not a valid time for a job: at most {MAX_DELAY:.0f} s from now"
        raise InvalidArgumentsError(msg)
    return seconds


def _seconds_until_datetime(when: Any) -> float:
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return float((moment - datetime.now(UTC)).total_seconds())
    except OverflowError:  # its year in UTC is out of the range of `datetime`
        return math.inf
