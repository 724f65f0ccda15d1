"""The overview: what is waiting, running and failing, what the last hour and day were like, and what was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.api.job_pages import COUNT_LIMIT
from onejob.jobs.lifecycle import State
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.activity import read_activity
from onejob.ledger.duplicate_stats import means_of, summarize_duplicates
from onejob.pages.activity_rows import WINDOWS, figures_row, slots
from onejob.pages.rendering import Page
from onejob.pages.views.view import View
from onejob.stores.protocol import GroupBy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.records import WorkerInfo
    from onejob.pages.site import Site, Visit

TOP = 5
"""How many tasks and submitters with the most duplicates are listed."""
CHOICES = ("hour", "day")
"""The windows that the overview offers."""


def _build(site: Site, visit: Visit) -> Page:
    ledger, workers, now = site.ledger, site.ledger.workers(), visit.now
    window = visit.parameters.choice("window", CHOICES)
    period, length = WINDOWS[window]
    activity = read_activity(ledger, period, length=length, now=now)
    states = ledger.count_states(limit=COUNT_LIMIT)
    data = {
        "now": to_datetime(now),
        "window": window,
        "windows": list(CHOICES),
        "states": [{"state": state.value, "count": states[state]} for state in State],
        "count_limit": COUNT_LIMIT,
        "activity": figures_row(activity.totals()),
        "slots": slots(activity),
        "begin": to_datetime(activity.begin),
        "workers": _workers(site, workers, now),
        "oldest": _oldest(site, workers),
        "saved": site.figures.get("saved", lambda: _saved(site)),
        "is_new": not any(states.values()),
    }
    return Page(template="overview.html", title="Overview", data=data, live="ledger")


def _workers(site: Site, workers: Sequence[WorkerInfo], now: float) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "seen_at": to_datetime(each.seen_at),
            "concurrency": each.concurrency,
            "is_late": site.is_late(each, now),
        }
        for each in workers
    ]


def _oldest(site: Site, workers: Sequence[WorkerInfo]) -> dict[str, Any] | None:
    """Return since when the oldest waiting job has been due, of those that were looked at, and its task."""
    backlog = site.ledger.backlog(tasks=site.tasks(workers), limit=COUNT_LIMIT)
    oldest = min(backlog, key=lambda each: each.oldest_run_at, default=None)
    if oldest is None:
        return None
    return {
        "task": oldest.task,
        "queue": oldest.queue,
        "state": oldest.state.value,
        "run_at": to_datetime(oldest.oldest_run_at),
    }


def _saved(site: Site) -> dict[str, Any]:
    """Return the tasks and submitters with the most duplicates, and the sums of all of their duplicates."""
    mean_of = means_of(site.ledger)
    return {
        by.value: [
            {"name": each.name, "runs": each.runs, "seconds": each.seconds}
            for each in summarize_duplicates(site.ledger, by, limit=TOP, mean_of=mean_of)
        ]
        for by in (GroupBy.TASK, GroupBy.SUBMITTER)
    }


OVERVIEW = View("overview", "/", _build)
