"""Finding a job by what a person types, and what the command palette offers besides the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from onejob.api.routes.jobs import is_valid_id
from onejob.pages.rendering import Page, Redirect, job_path
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit


def _find(site: Site, visit: Visit) -> Redirect:
    """Go to the job that has the given id, or else to the jobs with the text among their arguments."""
    text = visit.parameters.text("q")
    if text is None:
        return Redirect("/jobs")
    if site.redact is not None or (is_valid_id(text) and site.ledger.get_or_none(text) is not None):
        return Redirect(job_path(text))
    return Redirect(f"/jobs?{urlencode({'argument': text})}")


def _list_tasks(site: Site, _visit: Visit) -> Page:
    return Page(template="palette.html", title="Tasks", data={"tasks": sorted(site.tasks(site.ledger.workers()))})


PALETTE = View("palette", "/palette", _list_tasks)
FIND = View("find", "/find", _find)
