"""Sentry in real processes: a transport appends what is reported to one file, where the test reads it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from sentry_sdk.envelope import Envelope

FILE = "sentry"


def report_to(directory: Path, **options: Any) -> None:
    """Report the errors and transactions of this process, and of its children, with the integration for Celery."""
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    class FileTransport(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            items = [item for item in envelope.items if item.payload.json is not None]
            text = "".join(json.dumps({"kind": item.type, **item.payload.json}, default=str) + "\n" for item in items)  # type: ignore[dict-item]
            file = os.open(directory / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)

    sentry_sdk.init(
        dsn="http://public@127.0.0.1:9/1", transport=FileTransport, integrations=[CeleryIntegration()], **options
    )


def reports_in(directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return what was reported so far: an `event` is an error, a `transaction` is a run; each with its JSON."""
    file = directory / FILE
    lines = file.read_text().splitlines() if file.exists() else []
    return [report for report in map(json.loads, lines) if report["kind"] == kind]
