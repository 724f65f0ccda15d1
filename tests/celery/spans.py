"""Spans of real processes: each appends those that have ended to one file, where the test reads them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

FILE = "spans"


def trace_to(directory: Path, *, batch: bool = False) -> None:
    """Trace this process and its children; `batch`: export nothing until the spans are flushed."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

    import onejob.opentelemetry

    class FileExporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            file = os.open(directory / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, "".join(f"{span.to_json(indent=None)}\n" for span in spans).encode())
            finally:
                os.close(file)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    exporter = FileExporter()
    provider.add_span_processor(
        BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000) if batch else SimpleSpanProcessor(exporter)
    )
    onejob.opentelemetry.instrument(provider)


class Span:
    """One span that has ended."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.name: str = values["name"]
        self.kind: str = values["kind"].removeprefix("SpanKind.")
        self.trace: str = values["context"]["trace_id"]
        self.id: str = values["context"]["span_id"]
        self.parent: str | None = values["parent_id"]
        self.attributes: dict[str, Any] = values["attributes"]
        self.status: str = values["status"]["status_code"]
        self.events: dict[str, dict[str, Any]] = {event["name"]: event["attributes"] for event in values["events"]}
        self.links: list[str] = [link["context"]["span_id"] for link in values["links"]]

    def __repr__(self) -> str:
        return f"{self.name} {self.id} in {self.trace}, parent {self.parent}: {self.attributes} {self.events}"

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(f"onejob.{name}")


def spans_in(directory: Path) -> list[Span]:
    """Return the spans that have ended so far, in the order of their ends."""
    file = directory / FILE
    text = file.read_text() if file.exists() else ""
    whole, _, _ = text.rpartition("\n")  # a process may still be writing the last line
    return [Span(json.loads(line)) for line in whole.splitlines()]
