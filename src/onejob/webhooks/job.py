"""A webhook as a job: its submission, its payload, and the request that reports the end of the job it follows."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Self, TypeAlias
from uuid import UUID, uuid5

from onejob.jobs.model import JobRow, Submission
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import format_timestamp
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.observability.tracing import trace_of

NAMESPACE = UUID("1f0d7c7e-6a55-4c0b-8d0d-5f1a5a5d4b6e")
"""Namespace of the version 5 UUIDs of webhooks: an arbitrary value that must never change."""
LEASE = 60.0
"""Seconds; much longer than one attempt may take, because nothing renews it."""
SCHEDULE = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds between a failed attempt and the next one, as Standard Webhooks recommends; then it is a dead letter."""


class WebhookPayload(NamedTuple):
    """The arguments of a webhook: the job whose end it reports, and the URL it is sent to."""

    job_id: str
    url: str
    signer: str = ""
    """The submitter whose secrets sign; "": the app's secrets sign."""

    @classmethod
    def from_job(cls, webhook: JobRow) -> Self:
        """Read the payload of a webhook's job."""
        return cls(**json.loads(webhook.payload)["kwargs"])


def webhook_submission(url: str, job: JobRow, *, submitter: str = "", signer: str = "", host: str = "") -> Submission:
    """Return the submission of the webhook that reports the end of `job` to `url`.

    Its id depends on `url`, `job` and `signer` alone: a submitter with secrets of its own gets an event that these
    secrets sign, also if another submitter has named the same URL. `submitter` and `host` are those that name the URL.
    Workers of the job's task deliver the webhook: workers of another service would sign it with another secret. It is
    in the trace of the job.
    """
    # The nonce distinguishes a job from a later one with the same id, after the first was purged.
    name = " ".join(filter(None, (job.id, job.submission_nonce, url, signer)))
    webhook_id = str(uuid5(NAMESPACE, name))
    payload = {"task": WEBHOOK_TASK, "args": [], "kwargs": WebhookPayload(job.id, url, signer)._asdict()}
    return Submission(
        id=webhook_id, task=WEBHOOK_TASK, identity=f"webhook-{webhook_id}", fingerprint=webhook_id, nonce=webhook_id,
        payload=json.dumps(payload), lease=LEASE, source="webhook", publisher_task=job.task,
        submitter=submitter, host=host, options=json.dumps(trace_of(job.options)),
    )  # fmt: skip


Headers: TypeAlias = list[tuple[bytes | str, bytes | str]]
MEDIA_TYPE = "application/cloudevents+json"


def build_event(job: JobRow, *, namespace: str) -> str:
    """Return the event about an ended job, as JSON: all but its id, which differs between the webhooks of the job.

    Its source names the `namespace` of the ledger.
    """
    event = {
        "specversion": "1.0",
        "source": f"urn:onejob:{namespace}",
        "type": f"onejob.job.{job.state}",
        "subject": job.id,
        "time": format_timestamp(job.finished_at or job.created_at),
        "datacontenttype": "application/json",
        "data": job_to_dict(job),
    }
    return json.dumps(event, default=format_timestamp, separators=(",", ":"))


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
