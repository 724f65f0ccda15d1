"""Traces and metrics of jobs for OpenTelemetry. Requires `pip install "onejob[opentelemetry]"`, and an SDK.

Submissions, runs, steps and webhook deliveries have spans; metrics have the names of `/metrics`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from celery import signals
from celery.exceptions import Ignore, Reject, Retry

from onejob.errors import DuplicateJobError, JobInterrupted, describe, needs_extra
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission, JobRow
from onejob.ledger.stats import accumulate, read_metrics
from onejob.observability import tracing
from onejob.observability.events import EVENT_NAMES, JobEvent, one_line
from onejob.observability.metrics import PREFIX, SERIES, SUM, Key, Kind, end_of
from onejob.observability.tracing import EMPTY, SubmissionSpan, Tracer, WebhookSpan, trace_of

with needs_extra("opentelemetry", __name__):
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from celery import Celery

    from onejob.concurrency.batching import TTLCache

__all__ = ["instrument", "report_metrics", "uninstrument"]

LINK_LIMIT = 128
"""The maximum number of links of a span, which is the default limit of SDKs."""
NO_ERRORS = (Retry, Ignore, Reject, JobInterrupted, DuplicateJobError)
"""Exceptions that direct a run or a submission, and are no errors."""
FAILURES = frozenset({EVENT_NAMES[Transition.FAIL], EVENT_NAMES[Transition.DEAD_LETTER]})
_W3C = TraceContextTextMapPropagator()


_run: ContextVar[tuple[str, trace.Span]] = ContextVar("onejob_run_span", default=("", trace.INVALID_SPAN))
"""The id of the job that runs in this context, and the span of its run."""


class SpanTracer(Tracer):
    """Makes spans with a tracer of OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def submit(
        self, task: str, source: str, *, count: int | None = None, carrier: Mapping[str, str] = EMPTY
    ) -> Iterator[SubmissionSpan]:
        """Yield the span of a submission."""
        came = None if _current().is_valid else _span_context(carrier)
        attributes: dict[str, Any] = {"onejob.task": task, "onejob.source": source}
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        with self._start(f"submit {task}", trace.SpanKind.PRODUCER, "send", attributes, parent=came) as span:
            yield _SubmissionSpan(span, is_batch=count is not None)

    def context(self) -> Mapping[str, str]:
        """Return the current trace context."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier

    @contextmanager
    def run(self, job: JobRow) -> Iterator[trace.Span]:
        """Yield the span of a run, in the trace of the job, below the worker's span if it is in the same trace."""
        attributes = _job_attributes(job) | {
            "onejob.attempt": job.attempt, "onejob.token": job.token, "onejob.retries": job.retries,
            "onejob.crashes": job.crashes, "onejob.node": job.node,
        }  # fmt: skip
        with self._start(
            f"run {job.task}", trace.SpanKind.CONSUMER, "process", attributes, parent=_kept_in(job)
        ) as span:
            reset_token = _run.set((one_line(job.id), span))
            try:
                yield span
            except Retry as error:
                if isinstance(error.exc, Exception):
                    span.record_exception(error.exc)
                raise
            finally:
                _run.reset(reset_token)

    def step(self, name: str, *, memoised: bool) -> AbstractContextManager[trace.Span]:
        """Return the span of a step, a child of the run's."""
        attributes = {"onejob.step": name, "onejob.step.memoised": memoised}
        return self._start(f"step {name}", trace.SpanKind.INTERNAL, None, attributes)

    @contextmanager
    def deliver(self, webhook: JobRow, job_id: str, url: str) -> Iterator[WebhookSpan]:
        """Yield the span of one attempt to deliver a webhook, in the trace of the job that it reports."""
        attributes = {
            "onejob.job.id": job_id, "onejob.webhook.id": webhook.id, "onejob.attempt": webhook.attempt,
            "http.request.method": "POST",
        }  # fmt: skip
        with suppress(ValueError):  # an invalid URL; the delivery reports it
            attributes["server.address"] = urlsplit(url).hostname or ""
        with self._start("deliver webhook", trace.SpanKind.CLIENT, None, attributes, parent=_kept_in(webhook)) as span:
            yield _WebhookSpan(span, self.context())

    def on_event(self, event: JobEvent) -> None:
        """Add an event of the job that runs in this context to its span; the end of the run is an attribute, too."""
        job_id, span = _run.get()
        if job_id != event.job_id:
            return
        span.add_event(event.name, {f"onejob.{name}": value for name, value in event.fields.items()})
        if "run_seconds" in event.fields:
            span.set_attribute("onejob.end", end_of(event.name))
        if event.name in FAILURES:
            span.set_status(trace.StatusCode.ERROR)

    @contextmanager
    def _start(
        self, name: str, kind: trace.SpanKind, operation: str | None, attributes: Mapping[str, Any],
        *, parent: trace.SpanContext | None = None,
    ) -> Iterator[trace.Span]:  # fmt: skip
        """Yield a span, current in the block: below the current span, or linked, below a `parent` in another trace."""
        current, context, links = _current(), None, []
        if parent is not None and parent.is_valid and parent.trace_id != current.trace_id:
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
            links = [trace.Link(current)] if current.is_valid else []
        messaging = {
            "messaging.system": "celery", "messaging.operation.type": operation,
            "messaging.operation.name": name.partition(" ")[0],
        } if operation else {}  # fmt: skip
        with self._tracer.start_as_current_span(
            name, context, kind, messaging | {**attributes}, links, record_exception=False,
            set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield span
            except BaseException as error:
                if not isinstance(error, NO_ERRORS):
                    span.record_exception(error)
                    span.set_status(trace.Status(trace.StatusCode.ERROR, describe(error)))
                raise


class _SubmissionSpan(SubmissionSpan):
    def __init__(self, span: trace.Span, *, is_batch: bool) -> None:
        self._span = span
        self._is_batch = is_batch

    def activate(self) -> Any:
        """Make the span current in the block."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def record(self, admissions: Sequence[Admission]) -> None:
        """Add the outcomes and the links."""
        span, own = self._span, self._span.get_span_context()
        if not span.is_recording():
            return
        if self._is_batch:
            for outcome, count in Counter(each.outcome.value for each in admissions).items():
                span.set_attribute(f"onejob.outcome.{outcome}", count)
        else:
            for each in admissions:
                span.set_attributes(_job_attributes(each.job) | {"onejob.outcome": each.outcome.value})
        linked: set[int] = {own.span_id}
        for each in admissions:
            if each.outcome.makes_job and each.follower is None:
                continue
            context = _kept_in(each.job)
            if context.is_valid and context.span_id not in linked and len(linked) <= LINK_LIMIT:
                linked.add(context.span_id)
                span.add_link(context, {"onejob.job.id": each.job.id, "onejob.outcome": each.outcome.value})


class _WebhookSpan(WebhookSpan):
    def __init__(self, span: trace.Span, headers: Mapping[str, str]) -> None:
        self._span = span
        self.headers = headers

    def record(self, status: int) -> None:
        """Add the status of the response, which is an error unless the receiver has accepted."""
        self._span.set_attribute("http.response.status_code", status)
        if not 200 <= status < 300:  # noqa: PLR2004 - of HTTP
            self._span.set_status(trace.StatusCode.ERROR)


def _current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()


def _span_context(carrier: Mapping[str, str]) -> trace.SpanContext:
    """Return the span context in a carrier; an invalid context if it has none."""
    return trace.get_current_span(_W3C.extract(carrier, Context())).get_span_context()


def _kept_in(job: JobRow) -> trace.SpanContext:
    """Return the span context of the submission that made a job; an invalid context if it had none."""
    return _span_context(trace_of(job.options))


def _job_attributes(job: JobRow) -> dict[str, Any]:
    own = {"onejob.task": job.task, "onejob.job.id": job.id, "messaging.message.id": job.id}
    return own | ({"messaging.destination.name": job.queue} if job.queue else {})


FLUSH_MILLISECONDS = 2000
"""Limit for the export of the last spans of a pool's child."""


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Trace the submissions, runs, steps and webhooks of this process, and of the children that it forks.

    `tracer_provider`: None for OpenTelemetry's global one, which may also be set later. A repeated call replaces the
    provider.
    """
    tracing.install(SpanTracer(trace.get_tracer("onejob", version("onejob"), tracer_provider)))

    def flush(**_: Any) -> None:
        """Export the last spans of a pool's child, whose exit runs no `atexit` handlers."""
        provider: Any = tracer_provider or trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):  # only an SDK's provider has it
            provider.force_flush(FLUSH_MILLISECONDS)

    signals.worker_process_shutdown.disconnect(dispatch_uid=_UID)
    signals.worker_process_shutdown.connect(flush, weak=False, dispatch_uid=_UID)


def uninstrument() -> None:
    """Make no more spans. Spans that have begun are finished."""
    tracing.install(None)
    signals.worker_process_shutdown.disconnect(dispatch_uid=_UID)


_UID = "onejob.opentelemetry.flush"


class OneJobInstrumentor:
    """Calls `instrument` for `opentelemetry-instrument`, which finds this class by its entry point."""

    def instrument(self, *, tracer_provider: trace.TracerProvider | None = None, **_: Any) -> None:
        """Call `instrument`. Options of other instrumentors are ignored."""
        instrument(tracer_provider)

    def uninstrument(self, **_: Any) -> None:
        """Call `uninstrument`."""
        uninstrument()


Snapshot: TypeAlias = "TTLCache[dict[str, dict[Key, float]]]"
Parts: TypeAlias = Mapping[str, Callable[[dict[str, float]], list[tuple[dict[str, str], float]]]]
CACHE_SECONDS = 1.0
"""Seconds for which all instruments observe the same values: the values of one collection."""
HISTOGRAM_PARTS: Parts = {
    "bucket": lambda found: [({"le": bound}, count) for bound, count in accumulate(found)],
    "count": lambda found: [({}, accumulate(found)[-1][1])],
    "sum": lambda found: [({}, found.get(SUM, 0.0))],
}
"""The labels and values of Prometheus's series of a histogram; OpenTelemetry cannot observe a histogram."""


def report_metrics(app: Celery, meter_provider: MeterProvider | None = None) -> None:
    """Report the metrics of an app's ledger, read from the store at each collection.

    The metrics are totals of all processes, so only one process should report them: backends would add up the reports
    of a pool or of several servers. `meter_provider`: None for OpenTelemetry's global one. Nothing is observed while
    the store does not answer.
    """
    from onejob.celery.app_state import app_state_of  # not for `opentelemetry-instrument`, which precedes the app
    from onejob.concurrency.batching import TTLCache

    snapshot = TTLCache(lambda: read_metrics(app_state_of(app).ledger), CACHE_SECONDS)
    meter = metrics.get_meter("onejob", version("onejob"), meter_provider)
    for name, series in SERIES.items():
        unit = "s" if name.endswith("_seconds") else "1"
        if series.kind is Kind.HISTOGRAM:
            for part in HISTOGRAM_PARTS:
                # Up-down counters, because exporters to Prometheus add `_total` to the names of other counters.
                title, observe = f"{PREFIX}{name}_{part}", partial(_observe_part, snapshot, name, part)
                unit_of_part = unit if part == "sum" else "1"
                meter.create_observable_up_down_counter(title, [observe], unit_of_part, series.meaning)
            continue
        create = meter.create_observable_counter if series.kind is Kind.COUNTER else meter.create_observable_gauge
        create(PREFIX + name, [partial(_observe, snapshot, name)], unit, series.meaning)


def _observe(snapshot: Snapshot, name: str, _: CallbackOptions) -> Iterator[Observation]:
    labels = SERIES[name].labels
    values = snapshot().get(name) or ({} if labels else {(name,): 0.0})
    for (_name, *texts), value in values.items():
        yield Observation(value, dict(zip(labels, texts, strict=True)))


def _observe_part(snapshot: Snapshot, name: str, part: str, _: CallbackOptions) -> Iterator[Observation]:
    by_labels: defaultdict[Key, dict[str, float]] = defaultdict(dict)
    for (_name, *texts, bound), amount in snapshot().get(name, {}).items():
        by_labels[tuple(texts)][bound] = amount
    for labels, found in by_labels.items():
        for more, value in HISTOGRAM_PARTS[part](found):
            yield Observation(value, dict(zip(SERIES[name].labels, labels, strict=True)) | more)
