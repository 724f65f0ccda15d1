"""Sends the message of a job as Celery does, along the job's route."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from onejob.celery.broker import TRIES
from onejob.celery.message import MARK, decode, loads
from onejob.celery.routing import ResolvedRouter
from onejob.observability.tracing import TRACE_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from onejob.celery.message import Message
    from onejob.celery.routing import Routing
    from onejob.jobs.model import Job, Submission

DECLARE: dict[str, Any] = {"retry": True, "retry_policy": TRIES}
NO_DECLARE: dict[str, Any] = {"retry": False, "declare": []}
"""Options for a message whose queue was declared for an earlier message."""


class Sender:
    """Sends the messages of one app by its `send_task`."""

    def __init__(self, app: Celery, routing: Routing) -> None:
        self._app = app
        self._routing = routing

    def send(
        self, job: Job | Submission, producer: Any, publish_options: Mapping[str, Any],
        send_task: Callable[..., object] | None = None,
    ) -> None:  # fmt: skip
        """Send the message of a job. Raises what the transport raises, and for a malformed payload any exception."""
        message, options = decode(job.payload), self._with_priority(loads(job.options), job.priority_rank)
        for name in TRACE_CONTEXT:  # of the job, whose runs read it there
            options.pop(name, None)
        (send_task or self._app.send_task)(
            message.task,
            message.args,
            message.kwargs,
            task_id=job.id,
            retries=job.retries,
            producer=producer,
            add_to_parent=False,
            router=cast("Any", self._router_of(job, message, options, publish_options)),
            **{**options, "headers": {**(options.get("headers") or {}), MARK: job.id}},
        )

    def priority_rank(self, options: Mapping[str, Any]) -> int:
        """Return the rank of the `priority` in some options: a larger rank is consumed earlier, on every transport."""
        priority = options.get("priority")
        return priority * self._priority_sign if isinstance(priority, int) else 0

    def _with_priority(self, options: dict[str, Any], priority_rank: int) -> dict[str, Any]:
        """Return options with the priority of a job, which an equal submission may have raised."""
        return (
            options
            if self.priority_rank(options) == priority_rank
            else {**options, "priority": priority_rank * self._priority_sign}
        )

    def _router_of(
        self, job: Job | Submission, message: Message, options: Mapping[str, Any], publish_options: Mapping[str, Any]
    ) -> ResolvedRouter:
        """Return the router that sends a message by the route of its job."""
        route = job.route
        if not route:  # its submitter resolved none: another version of onejob
            task = self._app.tasks.get(message.task)
            named = task if task is not None else SimpleNamespace(name=message.task)
            route, _ = self._routing.resolve(named, message.args, message.kwargs, options)
        return ResolvedRouter({**self._routing.destination(route), **publish_options})

    @cached_property
    def _priority_sign(self) -> int:
        """1, or -1 on Redis, where 0 is the highest priority."""
        transport = self._app.connection_for_write().transport_cls
        return -1 if transport in {"redis", "rediss", "sentinel"} else 1
