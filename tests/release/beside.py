"""An app without onejob, watched by sentry-sdk and OpenTelemetry: each task is submitted once, and the events counted.

`python beside.py` submits the tasks; `celery -A beside worker` runs them. What Sentry and OpenTelemetry get is written,
one line each, to a file in the folder of the environment variable `BESIDE`.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import celery

FOLDER = Path(os.environ["BESIDE"])
for name in ("queue", "done", "control", "results"):
    (FOLDER / name).mkdir(exist_ok=True)
app: Any = celery.Celery("beside", broker="filesystem://", backend=f"file://{FOLDER / 'results'}")
app.conf.broker_transport_options = {
    "data_folder_in": str(FOLDER / "queue"), "data_folder_out": str(FOLDER / "queue"),
    "processed_folder": str(FOLDER / "done"), "control_folder": str(FOLDER / "control"),
}  # fmt: skip
app.conf.worker_enable_remote_control = False


def note(line: str) -> None:
    """Append a line to the record."""
    with (FOLDER / "record").open("a") as record:
        record.write(f"{line}\n")


def watch_by_sentry() -> None:
    import sentry_sdk
    from sentry_sdk.transport import Transport

    class Recorder(Transport):
        """Records what would be sent."""

        def capture_envelope(self, envelope: Any) -> None:
            for item in envelope.items:
                payload: Any = item.payload.json or {}
                if item.type == "transaction":
                    note(f"sentry transaction {payload['transaction']} {payload['contexts']['trace']['status']}")
                elif item.type == "event":
                    note(f"sentry event {payload['transaction']} {payload['exception']['values'][-1]['type']}")

    sentry_sdk.init(dsn="http://key@localhost/1", transport=Recorder, traces_sample_rate=1.0)


def watch_by_opentelemetry() -> None:
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor  # type: ignore[import-not-found] # see `test_beside`
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Recorder(SpanExporter):
        """Records spans."""

        def export(self, spans: Any) -> SpanExportResult:
            for span in spans:
                note(f"opentelemetry {span.kind.name} {span.name} {span.status.status_code.name}")
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Recorder()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


watch_by_sentry()
watch_by_opentelemetry()


def works(number: int) -> int:
    return 2 * number


def fails(number: int) -> None:
    raise ValueError(number)


app.task(name="works")(works)
app.task(name="fails")(fails)


async def awaits(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


if os.environ.get("CELERY_CUSTOM_WORKER_POOL"):  # of celery-aio-pool
    app.task(name="awaits")(awaits)

if __name__ == "__main__":
    for task in [name for name in ("works", "fails", "awaits") if name in app.tasks]:
        result = app.tasks[task].delay(21)
        value = result.get(timeout=60, propagate=False)
        note(f"result {task} {result.state} {value!r}")
