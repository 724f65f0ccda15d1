"""Traces and metrics of jobs for OpenTelemetry. Requires `pip install "onejob[opentelemetry]"`, and an SDK of yours."""

from onejob.opentelemetry.instruments import report_metrics
from onejob.opentelemetry.spans import OneJobInstrumentor, instrument, uninstrument

__all__ = ["OneJobInstrumentor", "instrument", "report_metrics", "uninstrument"]
