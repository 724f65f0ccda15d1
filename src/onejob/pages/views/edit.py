"""The form that redrives a dead letter with other arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.api.api_keys import Role
from onejob.celery.message import decode
from onejob.errors import NoDeadLetterError
from onejob.jobs.lifecycle import State
from onejob.jobs.public_view import job_to_dict
from onejob.pages.rendering import Page, pretty
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit


def _build(site: Site, visit: Visit) -> Page:
    job = site.ledger.get(visit.path["job_id"])
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job.id, job.state)
    message = decode(job.payload)
    data = {"job": job_to_dict(job), "args": pretty(message.args), "kwargs": pretty(message.kwargs), "error": None}
    return Page(template="edit.html", title="Redrive with other arguments", data=data)


EDIT = View("edit", "/jobs/{job_id}/edit", _build, Role.EDIT)
