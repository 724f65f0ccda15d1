"""Switches the traces of this process on and off."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from celery import signals
from opentelemetry import trace

from onejob.observability import tracing
from onejob.opentelemetry.spans import SpanTracer

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

FLUSH_MILLISECONDS = 2000
"""Limit for the export of the last spans of a pool's child."""


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace the submissions, runs, steps and webhooks of this process, and of the children that it forks.

    `tracer_provider`: None for OpenTelemetry's global one, which may also be set later. A repeated call replaces the
    provider.
    """
    tracing.install(SpanTracer(trace.get_tracer("onejob", version("onejob"), tracer_provider)))

    def flush(**_: Any) -> None:
        """Export the last spans of a pool's child, whose exit runs no `atexit` handlers."""
        provider: Any = tracer_provider or trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):  # only that of an SDK
            provider.force_flush(FLUSH_MILLISECONDS)

    signals.worker_process_shutdown.disconnect(dispatch_uid=_UID)
    signals.worker_process_shutdown.connect(flush, weak=False, dispatch_uid=_UID)


def uninstrument() -> None:
    """Make no more spans. Spans that have begun are finished."""
    tracing.install(None)
    signals.worker_process_shutdown.disconnect(dispatch_uid=_UID)


_UID = "onejob.opentelemetry.flush"


class OneJobInstrumentor:
    """The same for `opentelemetry-instrument`, which finds it by its entry point."""

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Call `instrument`. Options of other instrumentors are ignored."""
        instrument(tracer_provider)

    def uninstrument(self, **_: Any) -> None:
        """Call `uninstrument`."""
        uninstrument()
