"""Dead letters by task and error, with the first and the last time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.jobs.timestamps import to_datetime
from onejob.ledger.failure_groups import GROUP_LIMIT, FailureGroup, group_failures
from onejob.pages.rendering import Page
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit

READ_LIMIT = 10_000
"""How many dead letters are read at most: the newest ones."""


def _build(site: Site, visit: Visit) -> Page:
    task, since = visit.parameters.text("task"), visit.parameters.at("since")
    found = site.figures.get(("dead", task), lambda: group_failures(site.ledger, task=task, limit=READ_LIMIT))
    chosen = [each for each in found if not since or each.last_at >= since]
    total = sum(group.count for group in chosen)
    data = {
        "task": task, "groups": _rows(site, chosen[:GROUP_LIMIT]), "total": total,
        "group_count": len(chosen), "is_capped": total >= READ_LIMIT,
        "since": visit.parameters.text("since"), "now": to_datetime(visit.now),
    }  # fmt: skip
    return Page(template="dead_letters.html", title="Dead letters", data=data, rows="groups", live="ledger")


def _rows(site: Site, groups: list[FailureGroup]) -> list[dict[str, Any]]:
    rows = [
        {
            "task": group.task, "error_type": group.error_type, "message": group.message, "count": group.count,
            "first_at": to_datetime(group.first_at), "last_at": to_datetime(group.last_at), "pattern": group.pattern,
            "job_ids": list(group.job_ids), "oldest_id": group.oldest_id,
        }
        for group in groups
    ]  # fmt: skip
    return rows if site.redact is None else _redacted(site, rows)


def _redacted(site: Site, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with messages as they may be shown, and without patterns."""
    newest = [row["job_ids"][0] for row in rows]
    jobs = site.ledger.get_many(newest)
    for row, job_id in zip(rows, newest, strict=True):
        row["message"] = site.reason(jobs[job_id], row["message"]) if job_id in jobs else ""
        row["pattern"] = None
    return rows


DEAD_LETTERS = View("dead_letters", "/dead", _build)
