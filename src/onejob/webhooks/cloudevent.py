"""The request that reports the end of a job: a CloudEvents 1.0 event in JSON, with Standard Webhooks headers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job

Headers: TypeAlias = list[tuple[bytes | str, bytes | str]]
MEDIA_TYPE = "application/cloudevents+json"


def build_event(job: Job, *, source: str) -> str:
    """Return the event about an ended job, as JSON: all but its id, which differs between the webhooks of the job."""
    event = {
        "specversion": "1.0",
        "source": source,
        "type": f"onejob.job.{job.state}",
        "subject": job.id,
        "time": format_timestamp(job.finished_at or job.created_at),
        "datacontenttype": "application/json",
        "data": job_to_dict(job),
    }
    return json.dumps(event, default=_to_json, separators=(",", ":"))


def build_body(event: str, webhook_id: str) -> str:
    """Return the body that every attempt of a webhook sends: an event that `build_event` returned, with its id."""
    return f'{{"id":{json.dumps(webhook_id)},{event.removeprefix("{")}'


def build_headers(webhook_id: str, body: str, secrets: Sequence[str], *, at: datetime) -> Headers:
    """Return the headers of one attempt at the time `at`, with one signature per secret, in their order."""
    from standardwebhooks import Webhook

    return [
        ("content-type", MEDIA_TYPE),
        ("user-agent", "onejob"),
        ("accept", "*/*"),
        ("webhook-id", webhook_id),
        ("webhook-timestamp", str(int(at.timestamp()))),
        ("webhook-signature", " ".join(Webhook(secret).sign(webhook_id, at, body) for secret in secrets)),
    ]


def _to_json(value: Any) -> str:
    if isinstance(value, datetime):
        return format_timestamp(value.timestamp())
    raise TypeError
