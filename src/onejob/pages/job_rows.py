"""Jobs as rows of a list: their public fields, and the beginning of their arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onejob.api.job_pages import READ_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job
    from onejob.pages.site import Site

PREVIEW = 120
"""Characters of the arguments in a list."""
PREVIEW_BYTES = 1_000_000
"""How many characters of arguments a list reads for its previews; the rows after that have none."""
OMITTED = ("progress", "result")


def job_rows(site: Site, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Return jobs that were read without their large fields as rows."""
    previews = _previews(site, jobs)
    return [job_row(site, job) | {"arguments": previews[job.id]} for job in jobs]


def job_row(site: Site, job: Job) -> dict[str, Any]:
    """Return the public fields of a job without the large ones, as they may be shown."""
    fields = {name: value for name, value in site.fields(job).items() if name not in OMITTED}
    shown = {"reason": site.reason(job, job.reason), "error": site.redacted(job, "error", fields["error"])}
    return fields | shown | {"worker": job.node, "run_seconds": job.run_seconds}


def _previews(site: Site, jobs: Sequence[Job]) -> dict[str, str]:
    """Return the beginning of the arguments of each job, reading few large fields at once, and not too many in all."""
    previews, size = dict.fromkeys((job.id for job in jobs), "…"), 0
    for start in range(0, len(jobs), READ_AT_ONCE):
        if size > PREVIEW_BYTES:
            break
        found = site.ledger.get_many([job.id for job in jobs[start : start + READ_AT_ONCE]])
        size += sum(len(job.payload) for job in found.values())
        previews |= {job_id: preview(site.arguments(job)) for job_id, job in found.items()}
    return previews


def preview(arguments: Any) -> str:
    """Return arguments on one line, as in a call, cut to `PREVIEW` characters."""
    match arguments:
        case {"args": list(args), "kwargs": dict(kwargs)}:
            words = [_json(value) for value in args] + [f"{name}={_json(value)}" for name, value in kwargs.items()]
            text = ", ".join(words)
        case None | str():
            text = arguments or ""
        case _:
            text = _json(arguments)
    return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
