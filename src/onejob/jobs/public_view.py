"""The public view of a job, the same in the API, the CLI and webhooks; without arguments, which may be secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel
from onejob.jobs.timestamps import to_datetime

if TYPE_CHECKING:
    from onejob.jobs.model import Job


def job_to_dict(job: Job) -> dict[str, Any]:
    """Return the public fields of a job: JSON values, and times as `datetime`."""
    error = json.loads(job.error) if job.error and job.state is State.FAILED else None
    return {
        "id": job.id,
        "task": job.task,
        "identity": job.identity,
        "submitter": job.submitter,
        "tags": list(job.tags),
        "queue": job.queue,
        "state": job.state,
        "reason": job.reason,
        "queued_next": job.queued_next,
        "follows_id": job.follows_id,
        "cancel_requested": job.cancel is not Cancel.NO,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "duplicate_count": job.duplicate_count,
        "created_at": to_datetime(job.created_at),
        "run_at": to_datetime(job.run_at),
        "started_at": None if job.started_at is None else to_datetime(job.started_at),
        "finished_at": None if job.finished_at is None else to_datetime(job.finished_at),
        "progress": None if job.progress is None else json.loads(job.progress),
        "result": None if job.result is None else json.loads(job.result),
        "error": None if error is None else {"type": str(error["type"]), "message": str(error["message"])},
    }
