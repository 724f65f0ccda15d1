"""The form that redrives a dead letter with other arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onejob.api.api_keys import Role
from onejob.errors import NoDeadLetterError
from onejob.jobs.lifecycle import State
from onejob.pages.rendering import Page, pretty
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.pages.site import Site, Visit


def _build(site: Site, visit: Visit) -> Page:
    site.check_values_shown("editing them")
    job = site.job(visit.path["job_id"])
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job.id, job.state)
    payload = json.loads(job.payload)  # as stored, so that a date among the arguments remains one
    return edit_page(job, pretty(payload["args"]), pretty(payload["kwargs"]))


def edit_page(job: Job, args: str, kwargs: str, *, error: str | None = None, outcome: str = "done") -> Page:
    """Return the form with these JSON texts, and why they were refused; `outcome`: for the audit log."""
    data = {"job": {"id": job.id, "task": job.task}, "args": args, "kwargs": kwargs, "error": error}
    status = 200 if error is None else 422
    return Page(template="edit.html", title="Redrive with other arguments", data=data, status=status, outcome=outcome)


EDIT = View("edit", "/edit/{job_id:path}", _build, Role.EDIT)
