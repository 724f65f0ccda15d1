"""The audit log: what operators did, and which requests were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.api.api_keys import Role
from onejob.jobs.model import values_of
from onejob.jobs.timestamps import to_datetime
from onejob.pages.rendering import Page
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit

PAGE_SIZE = 100


def _build(site: Site, visit: Visit) -> Page:
    before = visit.parameters.number("before")
    entries = [
        values_of(entry) | {"at": to_datetime(entry.at)} for entry in site.ledger.audit(limit=PAGE_SIZE, before=before)
    ]
    data = {"entries": entries, "next": entries[-1]["id"] if len(entries) == PAGE_SIZE else None}
    return Page(template="audit.html", title="Audit log", data=data, rows="entries")


AUDIT = View("audit", "/audit", _build, Role.OPERATE)
