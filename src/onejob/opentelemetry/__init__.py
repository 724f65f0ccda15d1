"""Traces and metrics of jobs for OpenTelemetry. Requires `pip install "onejob[opentelemetry]"`, and an SDK of yours."""

from onejob.opentelemetry.instrumentor import OneJobInstrumentor, instrument, uninstrument
from onejob.opentelemetry.instruments import report_metrics

__all__ = ["OneJobInstrumentor", "instrument", "report_metrics", "uninstrument"]
