"""The job by which the end of another one is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid5

from onejob.jobs.model import Submission

if TYPE_CHECKING:
    from onejob.jobs.model import Job

WEBHOOK = "onejob.webhook"
"""The task of all webhooks."""
WEBHOOKS = UUID("1f0d7c7e-6a55-4c0b-8d0d-5f1a5a5d4b6e")
"""The name space of their ids: any UUID, never to be changed."""
LEASE = 60.0
"""Much longer than an attempt may take, because nobody renews it."""


class WebhookCall(NamedTuple):
    """What a webhook's payload says: whose end is told, and where."""

    job_id: str
    url: str

    @classmethod
    def of(cls, job: Job) -> WebhookCall:
        """Read the payload of a webhook."""
        return cls(**json.loads(job.payload)["kwargs"])


def webhook_to(url: str, job: Job) -> Submission:
    """Return the submission of the webhook that tells a URL the end of a job. Equal URLs are one webhook."""
    # The job's row has been written by one submission; a job that gets its id when it is gone is another job.
    own = str(uuid5(WEBHOOKS, f"{job.id} {job.submission_nonce} {url}"))
    payload = {"task": WEBHOOK, "args": [], "kwargs": WebhookCall(job.id, url)._asdict()}
    return Submission(
        id=own, task=WEBHOOK, identity=f"webhook-{own}", fingerprint=own, nonce=own, payload=json.dumps(payload),
        lease=LEASE, source="webhook",
    )  # fmt: skip
