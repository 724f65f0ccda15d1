"""Dead letters by task and error, with the first and the last time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.jobs.timestamps import to_datetime
from onejob.ledger.failure_groups import FailureGroup, group_failures
from onejob.pages.bulk import group_digest
from onejob.pages.rendering import Page
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit

READ_LIMIT = 10_000
"""How many dead letters are read at most: the newest ones."""


def _build(site: Site, visit: Visit) -> Page:
    task, since = visit.parameters.text("task"), visit.parameters.at("since")
    found = site.figures.get(("dead", task), lambda: group_failures(site.ledger, task=task, limit=READ_LIMIT))
    groups = _rows(site, [each for each in found if not since or each.last_at >= since])
    total = sum(group["count"] for group in groups)
    data = {
        "task": task, "groups": groups, "total": total, "is_capped": total >= READ_LIMIT,
        "since": visit.parameters.text("since"), "now": to_datetime(visit.now),
    }  # fmt: skip
    return Page(template="dead_letters.html", title="Dead letters", data=data, rows="groups", live="ledger")


def _rows(site: Site, groups: list[FailureGroup]) -> list[dict[str, Any]]:
    rows = [
        {
            "task": group.task, "error_type": group.error_type, "message": group.message, "count": group.count,
            "first_at": to_datetime(group.first_at), "last_at": to_datetime(group.last_at), "pattern": group.pattern,
            "job_ids": list(group.job_ids),
        }
        for group in groups
    ]  # fmt: skip
    return rows if site.redact is None else _redacted(site, rows)


def _redacted(site: Site, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with messages as they may be shown, and digests as patterns, by which a form selects a group."""
    newest = [row["job_ids"][0] for row in rows]
    jobs = site.ledger.get_many(newest)
    for row, job_id in zip(rows, newest, strict=True):
        row["message"] = site.reason(jobs[job_id], row["message"]) if job_id in jobs else ""
        row["pattern"] = group_digest(row["pattern"])
    return rows


DEAD_LETTERS = View("dead_letters", "/dead", _build)
