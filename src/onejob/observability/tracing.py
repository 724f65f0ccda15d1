"""Where traces begin: a tracer that is called for submissions, runs, steps and webhooks, and does nothing by default.

`onejob.opentelemetry` installs one. The W3C trace context of a submission is kept with its job, in the publish options,
so that each run finds it there: a republication, a retry, a redrive or a crash does not lose it.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from onejob.jobs.model import Admission, Job
    from onejob.observability.events import JobEvent

TRACE_CONTEXT = ("traceparent", "tracestate")
"""The names of a W3C trace context, as headers and in the publish options of a job."""
EMPTY: Mapping[str, str] = MappingProxyType({})


class SubmissionSpan(Protocol):
    """The span of one call that submits jobs."""

    def activate(self) -> AbstractContextManager[object]:
        """Make it the current span of the block, in another thread than the call's."""
        ...

    def record(self, admissions: Sequence[Admission]) -> None:
        """Add the outcomes, and links to the spans that submitted the jobs which duplicates got."""
        ...


class WebhookSpan(Protocol):
    """The span of one attempt to deliver a webhook."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that continue the trace at the receiver."""
        ...

    def record(self, status: int) -> None:
        """Add the HTTP status of the response."""
        ...


class Tracer(Protocol):
    """Makes spans. No method raises an error."""

    def submit(
        self, task: str, source: str, *, count: int | None = None, carrier: Mapping[str, str] = EMPTY
    ) -> AbstractContextManager[SubmissionSpan]:
        """Return the span of a submission; `count`: of how many jobs in one call.

        `carrier`: a trace context that came with the request, for a process without a current span.
        """
        ...

    def context(self) -> Mapping[str, str]:
        """Return the current trace context, which is kept with a new job; empty without one."""
        ...

    def run(self, job: Job) -> AbstractContextManager[object]:
        """Return the span of one run of a job."""
        ...

    def step(self, name: str, *, memoised: bool) -> AbstractContextManager[object]:
        """Return the span of a step; `memoised`: its value is kept from an earlier attempt."""
        ...

    def deliver(self, webhook: Job) -> AbstractContextManager[WebhookSpan]:
        """Return the span of one attempt to deliver a webhook."""
        ...

    def on_event(self, event: JobEvent) -> None:
        """Add an event of a job to the span of its run, if that is in this context."""
        ...


class _NoSpan:
    """The span that nothing records."""

    headers = EMPTY

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def activate(self) -> Self:
        """Return itself."""
        return self

    def record(self, _: object) -> None:
        """Record nothing."""


NO_SPAN = _NoSpan()


class _NoTracer:
    """The tracer of a process without traces."""

    def submit(self, _task: str, _source: str, *, count: int | None = None, carrier: object = None) -> _NoSpan:  # noqa: ARG002 - the protocol's
        """Return no span."""
        return NO_SPAN

    def context(self) -> Mapping[str, str]:
        """Return no context."""
        return EMPTY

    def run(self, _job: Job) -> _NoSpan:
        """Return no span."""
        return NO_SPAN

    def step(self, _name: str, *, memoised: bool) -> _NoSpan:  # noqa: ARG002 - the protocol's
        """Return no span."""
        return NO_SPAN

    def deliver(self, _webhook: Job) -> _NoSpan:
        """Return no span."""
        return NO_SPAN

    def on_event(self, _event: JobEvent) -> None:
        """Record nothing."""


NO_TRACER = _NoTracer()
tracer: Tracer = NO_TRACER
"""The tracer of this process."""


def install(new: Tracer | None) -> None:
    """Use a tracer in this process from now on; None: none."""
    global tracer  # noqa: PLW0603 - one per process, as OpenTelemetry's own
    tracer = new or NO_TRACER


def trace_of(options: str) -> dict[str, str]:
    """Return the trace context in the publish options (JSON) of a job; empty without one."""
    if '"traceparent"' not in options:
        return {}
    found = json.loads(options)
    return {name: str(found[name]) for name in TRACE_CONTEXT if found.get(name)}
