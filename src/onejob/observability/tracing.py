# ruff: noqa: ARG002 - installed tracers use the arguments
"""The tracer that is called for submissions, runs, steps and webhooks; the default tracer does nothing.

`onejob.opentelemetry` installs a tracer that makes spans. The W3C trace context of a submission is kept with its job,
in the publish options, so that each run finds it there: a republication, a retry, a redrive or a crash does not lose
it.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

from onejob.jobs.model import Admission, JobRow
from onejob.observability.events import JobEvent

TRACE_CONTEXT = ("traceparent", "tracestate")
"""The names of a W3C trace context, as headers and in the publish options of a job."""
EMPTY: Mapping[str, str] = MappingProxyType({})


class SubmissionSpan:
    """The span of a call that submits jobs; this class records nothing."""

    def activate(self) -> AbstractContextManager[object]:
        """Make this the current span of the block, in another thread than the call's."""
        return nullcontext()

    def record(self, admissions: Sequence[Admission]) -> None:
        """Add the outcomes, and for duplicates links to the spans that submitted the jobs."""


class WebhookSpan:
    """The span of an attempt to deliver a webhook; this class records nothing."""

    headers: Mapping[str, str] = EMPTY
    """The headers that continue the trace at the receiver."""

    def record(self, status: int) -> None:
        """Add the HTTP status of the response."""


NO_SPAN = SubmissionSpan()
_SUBMISSION, _WEBHOOK, _NOTHING = nullcontext(NO_SPAN), nullcontext(WebhookSpan()), nullcontext()


class Tracer:
    """Makes spans; this class makes none. No method raises an error."""

    def submit(
        self, task: str, source: str, *, count: int | None = None, carrier: Mapping[str, str] = EMPTY
    ) -> AbstractContextManager[SubmissionSpan]:
        """Return the span of a submission; `count`: of how many jobs in one call.

        `carrier`: a trace context that came with the request, for a process without a current span.
        """
        return _SUBMISSION

    def context(self) -> Mapping[str, str]:
        """Return the current trace context, which is kept with a new job; empty if there is none."""
        return EMPTY

    def run(self, job: JobRow) -> AbstractContextManager[object]:
        """Return the span of one run of a job."""
        return _NOTHING

    def step(self, name: str, *, memoised: bool) -> AbstractContextManager[object]:
        """Return the span of a step; `memoised`: its value is kept from an earlier attempt."""
        return _NOTHING

    def deliver(self, webhook: JobRow, job_id: str, url: str) -> AbstractContextManager[WebhookSpan]:
        """Return the span of one attempt to deliver a webhook, which reports the end of a job to a URL."""
        return _WEBHOOK

    def on_event(self, event: JobEvent) -> None:
        """Add an event of a job to the span of its run, if the run is in this context."""


NO_TRACER = Tracer()
tracer = NO_TRACER


def install(new: Tracer | None) -> None:
    """Use a tracer in this process from now on; None: trace nothing."""
    global tracer  # noqa: PLW0603 - one per process, as OpenTelemetry's own
    tracer = new or NO_TRACER


def trace_of(options: str) -> dict[str, str]:
    """Return the trace context in the publish options (JSON) of a job; empty if there is none."""
    if '"traceparent"' not in options:
        return {}
    found = json.loads(options)
    return {name: str(found[name]) for name in TRACE_CONTEXT if found.get(name)}
