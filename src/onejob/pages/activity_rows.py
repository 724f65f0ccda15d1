"""The activity of a ledger as rows: for charts, for lists and for totals."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onejob.jobs.policy import DAY
from onejob.jobs.records import Period
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.activity import Figures

if TYPE_CHECKING:
    from collections.abc import Hashable
    from datetime import tzinfo

    from onejob.ledger.activity import Activity

HOURS = 24
WINDOWS = {"hour": (Period.MINUTE, 3600.0), "day": (Period.HOUR, DAY), "week": (Period.HOUR, 7 * DAY)}
"""The windows that figures may have, by name: how finely they are counted, and their seconds."""


def slots(activity: Activity) -> list[dict[str, Any]]:
    """Return the figures of each slot, oldest first."""
    return [{"begin": to_datetime(slot.begin), **figures_row(slot.totals())} for slot in activity.slots]


def figures_row(figures: Figures) -> dict[str, Any]:
    """Return figures as numbers: submissions, runs by end, their times in seconds, and what deduplication saved."""
    submissions = sum(figures.submissions.values())
    failed = figures.failed
    completed, retrying = figures.runs["completed"], figures.runs["retrying"]
    prevented, rejected = (
        figures.duplicates_prevented,
        sum(count for outcome, count in figures.submissions.items() if outcome == "rejected"),
    )
    return {
        "submissions": submissions, "admitted": submissions - prevented - rejected, "prevented": prevented,
        "rejected": rejected, "seconds_saved": figures.seconds_saved, "runs": figures.runs.total(),
        "completed": completed, "failed": failed, "retrying": retrying,
        "other": figures.runs.total() - completed - failed - retrying, "lease_expiries": figures.lease_expiries,
        "failed_share": figures.failed_share, "run_mean": figures.run_times.mean,
        "run_p50": figures.run_quantile(0.5), "run_p95": figures.run_quantile(0.95),
        "wait_p50": figures.wait_quantile(0.5), "wait_p95": figures.wait_quantile(0.95),
    }  # fmt: skip


def task_figures(figures: Figures | None, seconds: float) -> dict[str, Any]:
    """Return the figures of a task in a window of so many seconds."""
    row = figures_row(figures or Figures())
    return row | {"runs_per_minute": row["runs"] * 60.0 / seconds}


def by_day(activity: Activity, zone: tzinfo) -> list[dict[str, Any]]:
    """Return the figures of each day in a time zone on which something happened, oldest first."""
    grouped = {
        day: figures for day, figures in _group(activity, zone, lambda at: at.date()).items() if figures.submissions
    }
    return [{"day": day.isoformat(), **figures_row(figures)} for day, figures in sorted(grouped.items())]


def by_hour_of_day(activity: Activity, zone: tzinfo) -> list[dict[str, Any]]:
    """Return the figures of each hour of the day in a time zone, all days together."""
    grouped = _group(activity, zone, lambda at: at.hour)
    return [{"hour": hour, **figures_row(grouped.get(hour, Figures()))} for hour in range(HOURS)]


def _group(activity: Activity, zone: tzinfo, key: Any) -> dict[Any, Figures]:
    grouped: dict[Hashable, Figures] = defaultdict(Figures)
    for slot in activity.slots:
        grouped[key(datetime.fromtimestamp(slot.begin, zone))].merge(slot.totals())
    return dict(grouped)
