"""Submissions over HTTP in the traces of their callers. The exporter is of the newest OpenTelemetry."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import onejob.opentelemetry
from checks.project import ROOT
from onejob.observability import tracing
from onejob.observability.tracing import trace_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.http.conftest import Shop

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Return what gets the spans of this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    onejob.opentelemetry.instrument(provider)
    yield exporter
    onejob.opentelemetry.uninstrument()


def test_a_request_continues_the_trace_of_its_caller(shop: Shop, exporter: InMemorySpanExporter) -> None:
    """A submission over HTTP is in the trace of its `traceparent`, which its job keeps; duplicates link to it."""
    job_id = shop.job_id(1, headers=SENT)
    shop.submit(1)
    first, again = exporter.get_finished_spans()
    assert first.context is not None
    assert first.parent is not None
    assert again.context is not None
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, CALLER)
    kept = trace_of(shop.ledger.get(job_id).options)["traceparent"]
    assert kept == f"00-{TRACE}-{first.context.span_id:016x}-01"
    attributes = [dict(span.attributes or {}) for span in (first, again)]
    assert [each["onejob.outcome"] for each in attributes] == ["admitted", "attached"]
    assert [each["onejob.source"] for each in attributes] == ["http", "http"]
    assert [link.context.span_id for link in again.links] == [first.context.span_id]
    assert again.context.trace_id != first.context.trace_id


def test_a_refused_request_is_an_error(shop: Shop, exporter: InMemorySpanExporter) -> None:
    """The span of a submission that was refused has the exception; one that only validates has no span."""
    assert shop.submit(1, validate_only=True).status_code == 200
    assert exporter.get_finished_spans() == ()
    shop.submit(1, idempotency_key="k")
    assert shop.submit(2, idempotency_key="k").status_code == 422
    _, refused = exporter.get_finished_spans()
    assert not refused.status.is_ok
    assert [event.name for event in refused.events] == ["exception"]


def test_the_entry_point_switches_traces_on_and_off() -> None:
    """What `opentelemetry-instrument` finds by the entry point traces this process until it is switched off."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    point = EntryPoint("onejob", project["entry-points"]["opentelemetry_instrumentor"]["onejob"], "instrumentor")
    instrumentor = point.load()()
    instrumentor.instrument(tracer_provider=TracerProvider(), skip_dep_check=True)
    assert tracing.tracer is not tracing.NO_TRACER
    instrumentor.uninstrument()
    assert tracing.tracer is tracing.NO_TRACER
