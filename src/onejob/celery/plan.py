"""What all submissions of one task with the same options have in common, checked and encoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.utils.nodenames import gethostname

from onejob.celery.message import SUBMITTER_HEADER, TRANSIENT, encode_options, has_canvas
from onejob.celery.wire import MessageKind
from onejob.errors import InvalidPayloadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from onejob.celery.publisher import Publisher
    from onejob.celery.routing import Routing
    from onejob.uniqueness.canonical_json import Limits

PLAN_LIMIT = 512
"""How many plans are kept; then all are forgotten."""
_VARYING = TRANSIENT | {"root_id", "parent_id"}
_OFTEN_ABSENT = _VARYING - {"expires"}
"""Celery gives an expiry with every call, which is mostly None."""
_SIMPLE = frozenset({str, int, float, bool})
"""The types of the options by which plans are found. Any other may be changed later, or cannot be compared."""


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """How the messages of some submissions are sent, without the ids of the run that submits them."""

    kind: MessageKind
    """The task, the route, the options of the message as JSON, and its priority."""
    canvas: bool
    sent_options: Mapping[str, Any]
    always_encodes: bool
    """Whether the message can be encoded whatever its arguments are."""
    host: str
    shared: bool
    """Whether other arguments, with the same options, have the same plan."""


class SubmissionPlans:
    """The plans of one app."""

    def __init__(self, routing: Routing, publisher: Publisher, limits: Limits) -> None:
        self._routing = routing
        self._publisher = publisher
        self._limits = limits
        self._plans: dict[tuple[Any, ...] | None, SubmissionPlan] = {}

    def find(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any],
        scope: str | None,
    ) -> SubmissionPlan:  # fmt: skip
        """Return the plan of a call; a new one where the arguments or the options could be others next time.

        `scope`: the name of a submitter with own jobs. Raises what `Routing.resolve` and `encode_options` raise.
        """
        is_static = self._routing.is_static()
        if options.get("expires") is not None or not _OFTEN_ABSENT.isdisjoint(options):
            options = {name: value for name, value in options.items() if name not in _VARYING}
        key = (task.name, scope, self._routing.version, *options.items())
        try:
            plan = self._plans.get(key)
        except TypeError:  # an option that cannot be compared, such as headers
            plan = None
        return plan or self._build(task, args, kwargs, options, scope, key if is_static else None)

    def _build(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any],
        scope: str | None, key: tuple[Any, ...] | None,
    ) -> SubmissionPlan:  # fmt: skip
        """Return a new plan; with a `key` it is kept if its options are simple ones.

        It binds all tasks of the app: a misconfigured one raises its error before any job.
        """
        _finalize(task.app)
        routing = self._routing
        options = {name: value for name, value in options.items() if value is not None}
        _check_time_limits(task, options)
        shared = key is not None and _SIMPLE.issuperset(map(type, options.values()))
        if scope is not None:
            options = {**options, "headers": {**(options.get("headers") or {}), SUBMITTER_HEADER: scope}}
        route, sent_options = routing.resolve(task, args, kwargs, options)
        plan = SubmissionPlan(
            kind=MessageKind(
                str(task.name),
                encode_options(sent_options, self._limits),
                route,
                self._publisher.priority_rank(sent_options),
            ),
            canvas=has_canvas(options),
            sent_options=sent_options,
            always_encodes=routing.always_encodes(sent_options),
            host=gethostname(),
            shared=shared,
        )
        if shared:
            if len(self._plans) >= PLAN_LIMIT:
                self._plans.clear()
            self._plans[key] = plan
        return plan


def _check_time_limits(task: Any, options: Mapping[str, Any]) -> None:
    """Raise `InvalidPayloadError`, a `ValueError` as Celery's, for limits of which the soft one is never reached."""
    soft, hard = options.get("soft_time_limit"), options.get("time_limit")
    if soft and hard and soft > hard:
        msg = f"task {task.name}: soft_time_limit must be less than or equal to time_limit, not {soft} and {hard}"
        raise InvalidPayloadError(msg)


def _finalize(app: Celery) -> None:
    untyped: Any = app  # the published types know no `finalized`
    if not untyped.finalized:
        untyped.finalize(auto=True)
