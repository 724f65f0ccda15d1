"""Jobs as the rows of lists, with the beginning of their arguments."""

from collections.abc import Sequence
from typing import Any

from onejob.api.job_reads import READ_AT_ONCE
from onejob.celery.messages.payload import preview
from onejob.jobs.lifecycle import WAITING
from onejob.jobs.model import JobRow
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.stuck import follows_another
from onejob.pages.context import Context

PREVIEW_BYTES = 1_000_000
"""How many characters of arguments a list reads for its previews; the rows after that have none."""
OMITTED = ("progress", "result")


def job_rows(context: Context, jobs: Sequence[JobRow]) -> list[dict[str, Any]]:
    """Return jobs that were read without their large fields as rows with the beginning of their arguments.

    Few large fields are read at once, and not too many in all.
    """
    previews, size = dict.fromkeys((job.id for job in jobs), "…"), 0
    for start in range(0, len(jobs), READ_AT_ONCE):
        if size > PREVIEW_BYTES:
            break
        found = context.ledger.get_many([job.id for job in jobs[start : start + READ_AT_ONCE]])
        size += sum(len(job.payload) for job in found.values())
        previews |= {job_id: preview(context.arguments(job)) for job_id, job in found.items()}
    return [job_row(context, job) | {"arguments": previews[job.id]} for job in jobs]


def job_row(context: Context, job: JobRow) -> dict[str, Any]:
    """Return the public fields of a job without the large ones, as they may be shown."""
    fields = {name: value for name, value in context.fields(job).items() if name not in OMITTED}
    shown = {"reason": context.reason(job, job.reason), "error": context.redacted(job, "error", fields["error"])}
    waits = job.state in WAITING and not follows_another(job)
    due = {"due_at": to_datetime(job.run_at) if waits else None}
    return fields | shown | due | {"worker": job.node, "run_seconds": job.run_seconds}
