"""What real processes report to Sentry and to OpenTelemetry: each appends it to one file, where the test reads it."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from sentry_sdk.envelope import Envelope


def append(file: Path, lines: Iterable[str]) -> None:
    """Append lines, whole, whatever else is writing."""
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(opened)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the values of the whole lines so far; a process may still be writing the last one."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


# --- Sentry -----------------------------------------------------------------------------------------------------------


def report_to(directory: Path, **options: Any) -> None:
    """Report the errors and transactions of this process, and of its children, with the integration for Celery."""
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    class FileTransport(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            reports = [{"kind": item.type, **(item.payload.json or {})} for item in envelope.items]
            append(directory / "sentry", [json.dumps(each, default=str) for each in reports])

    sentry_sdk.init(
        dsn="http://public@127.0.0.1:9/1", transport=FileTransport, integrations=[CeleryIntegration()], **options
    )


def reports_in(directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return what was reported so far: an `event` is an error, a `transaction` is a run; each with its JSON."""
    return [report for report in lines_of(directory / "sentry") if report["kind"] == kind]


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


def trace_to(directory: Path, *, batch: bool = False) -> None:
    """Trace this process and its children; `batch`: export nothing until the spans are flushed."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

    import onejob.opentelemetry

    class FileExporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            append(directory / "spans", [span.to_json(indent=None) for span in spans])
            return SpanExportResult.SUCCESS

    provider, exporter = TracerProvider(), FileExporter()
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

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(f"onejob.{name}")


def spans_in(directory: Path) -> list[Span]:
    """Return the spans that have ended so far, in the order of their ends."""
    return [Span(values) for values in lines_of(directory / "spans")]
