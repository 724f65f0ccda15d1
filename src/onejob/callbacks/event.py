"""What is told of a job's end: a CloudEvents 1.0 event in JSON, signed as Standard Webhooks says."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from onejob.moment import text_of
from onejob.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.job import Job

Headers: TypeAlias = list[tuple[bytes | str, bytes | str]]
MEDIA_TYPE = "application/cloudevents+json"


def event_of(job: Job, *, callback_id: str, source: str) -> str:
    """Return the event that tells the end of a job, as the text that is sent in every attempt."""
    event = {
        "specversion": "1.0",
        "id": callback_id,
        "source": source,
        "type": f"onejob.job.{job.state}",
        "subject": job.id,
        "time": text_of(job.finished_at or job.created_at),
        "datacontenttype": "application/json",
        "data": shown(job),
    }
    return json.dumps(event, default=_text, separators=(",", ":"))


def headers_of(callback_id: str, body: str, secrets: Sequence[str], *, at: datetime) -> Headers:
    """Return the headers of one attempt: each secret signs, the newest first."""
    from standardwebhooks import Webhook

    return [
        ("content-type", MEDIA_TYPE),
        ("user-agent", "onejob"),
        ("accept", "*/*"),
        ("webhook-id", callback_id),
        ("webhook-timestamp", str(int(at.timestamp()))),
        ("webhook-signature", " ".join(Webhook(secret).sign(callback_id, at, body) for secret in secrets)),
    ]


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return text_of(value.timestamp())
    raise TypeError
