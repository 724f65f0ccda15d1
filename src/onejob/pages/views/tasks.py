"""The tasks: what makes their calls equal, and how often, how fast and how well they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.api.job_pages import COUNT_LIMIT
from onejob.celery.options import tasks_of
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.activity import read_activity
from onejob.pages.activity_rows import WINDOWS, task_figures
from onejob.pages.rendering import Page
from onejob.pages.views.duplicates import uniqueness_rule
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit


def _build(site: Site, visit: Visit) -> Page:
    window = visit.parameters.choice("window", tuple(WINDOWS))
    period, length = WINDOWS[window]
    by_task = read_activity(site.ledger, period, length=length, now=visit.now).by_task()
    waiting: dict[str, int] = {}
    known = site.tasks(site.ledger.workers())
    for each in site.ledger.backlog(tasks=known, limit=COUNT_LIMIT):
        waiting[each.task] = waiting.get(each.task, 0) + each.count
    bound = tasks_of(site.app)
    rows: list[dict[str, Any]] = []
    for name in sorted({*known, *by_task}):
        rule = (
            uniqueness_rule(bound[name])
            if name in bound
            else {"task": name, "unique_on": "", "window": "", "on_duplicate": ""}
        )
        rows.append(rule | {"waiting": waiting.get(name, 0)} | task_figures(by_task.get(name), length))
    data = {
        "window": window,
        "windows": list(WINDOWS),
        "tasks": rows,
        "now": to_datetime(visit.now),
        "begin": to_datetime(visit.now - length),
    }
    return Page(template="tasks.html", title="Tasks", data=data, rows="tasks", live="ledger")


TASKS = View("tasks", "/tasks", _build)
