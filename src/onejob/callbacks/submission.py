"""The job by which the end of another one is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid5

from onejob.job import Submission

if TYPE_CHECKING:
    from onejob.job import Job

CALLBACK = "onejob.callback"
"""The task of all callbacks."""
CALLBACKS = UUID("1f0d7c7e-6a55-4c0b-8d0d-5f1a5a5d4b6e")
"""The name space of their ids: any UUID, never to be changed."""
LEASE = 60.0
"""Much longer than an attempt may take, because nobody renews it."""


class Callback(NamedTuple):
    """What a callback's payload says: whose end is told, and where."""

    job_id: str
    url: str

    @classmethod
    def of(cls, job: Job) -> Callback:
        """Read the payload of a callback."""
        return cls(**json.loads(job.payload)["kwargs"])


def callback_to(url: str, job: Job) -> Submission:
    """Return the submission of the callback that tells a URL the end of a job. Equal URLs are one callback."""
    # The job's row has been written by one submission; a job that gets its id when it is gone is another job.
    own = str(uuid5(CALLBACKS, f"{job.id} {job.submission} {url}"))
    payload = {"task": CALLBACK, "args": [], "kwargs": Callback(job.id, url)._asdict()}
    return Submission(
        id=own, task=CALLBACK, identity=f"callback-{own}", fingerprint=own, nonce=own, payload=json.dumps(payload),
        lease=LEASE, door="callback",
    )  # fmt: skip
