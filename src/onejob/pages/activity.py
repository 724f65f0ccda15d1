"""What has happened: the overview, the tasks, and the duplicates with a box to try; stats by time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from datetime import datetime, tzinfo
from typing import Any

from onejob.api.job_reads import COUNT_LIMIT
from onejob.celery.operations import check_duplicate, parse_arguments
from onejob.celery.options import options_of, tasks_of
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.on_duplicate import DEFAULT
from onejob.jobs.policy import DAY
from onejob.jobs.public_view import fields_of
from onejob.jobs.records import Period, WorkerInfo
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.stats import Activity, DuplicateSummary, Stats, read_activity, summarize_duplicates
from onejob.pages.context import Context, PageRequest, job_row
from onejob.pages.rendering import Page, View
from onejob.stores.protocol import GroupBy

HOURS = 24
WINDOWS = {"hour": (Period.MINUTE, 3600.0), "day": (Period.HOUR, DAY), "week": (Period.HOUR, 7 * DAY)}
"""The windows that stats may have, by name: how finely they are counted, and their seconds."""


def stats_row(stats: Stats) -> dict[str, Any]:
    """Return stats as numbers: submissions, runs by end, their times in seconds, and what deduplication saved."""
    submissions = sum(stats.submissions.values())
    failed = stats.failed
    completed, retrying = stats.runs["completed"], stats.runs["retrying"]
    prevented, rejected = stats.duplicates_prevented, stats.submissions[Outcome.REJECTED]
    return {
        "submissions": submissions, "admitted": submissions - prevented - rejected, "prevented": prevented,
        "rejected": rejected, "seconds_saved": stats.seconds_saved, "runs": stats.runs.total(),
        "completed": completed, "failed": failed, "retrying": retrying,
        "other": stats.runs.total() - completed - failed - retrying, "lease_expiries": stats.lease_expiries,
        "failed_share": stats.failed_share, "run_mean": stats.run_times.mean,
        "run_p50": stats.run_times.quantile(0.5), "run_p95": stats.run_times.quantile(0.95),
        "wait_p50": stats.wait_times.quantile(0.5), "wait_p95": stats.wait_times.quantile(0.95),
    }  # fmt: skip


def by_day(activity: Activity, zone: tzinfo) -> list[dict[str, Any]]:
    """Return the stats of each day in a time zone on which something happened, oldest first."""
    grouped = {day: stats for day, stats in _group(activity, zone, lambda at: at.date()).items() if stats.submissions}
    return [{"day": day.isoformat(), **stats_row(stats)} for day, stats in sorted(grouped.items())]


def by_hour_of_day(activity: Activity, zone: tzinfo) -> list[dict[str, Any]]:
    """Return the stats of each hour of the day in a time zone, all days together."""
    grouped = _group(activity, zone, lambda at: at.hour)
    return [{"hour": hour, **stats_row(grouped.get(hour, Stats()))} for hour in range(HOURS)]


def _group(activity: Activity, zone: tzinfo, key: Any) -> dict[Any, Stats]:
    grouped: dict[Hashable, Stats] = defaultdict(Stats)
    for slot in activity.slots:
        grouped[key(datetime.fromtimestamp(slot.begin, zone))].merge(slot.totals())
    return dict(grouped)


TOP = 5
"""How many tasks and submitters with the most duplicates are listed."""
CHOICES = ("hour", "day")
"""The windows that the overview offers."""


def _build_overview(context: Context, request: PageRequest) -> Page:
    ledger, workers, now = context.ledger, context.ledger.workers(), request.now
    window = request.parameters.choice("window", CHOICES)
    period, length = WINDOWS[window]
    activity = read_activity(ledger, period, length=length, now=now, mean_of=context.mean_of)
    states = ledger.count_states(limit=COUNT_LIMIT)
    data = {
        "now": to_datetime(now),
        "window": window,
        "windows": list(CHOICES),
        "states": [{"state": state.value, "count": states[state]} for state in State],
        "count_limit": COUNT_LIMIT,
        "activity": stats_row(activity.totals()),
        "slots": [{"begin": to_datetime(slot.begin), **stats_row(slot.totals())} for slot in activity.slots],
        "begin": to_datetime(activity.begin),
        "workers": [
            fields_of(each, "name", "seen_at", "concurrency") | {"is_late": context.is_late(each, now)}
            for each in workers
        ],
        "oldest": _oldest(context, workers),
        "saved": context.stats.get("saved", lambda: _saved(context)),
        "is_new": not any(states.values()),
    }
    return Page(template="overview.html", title="Overview", data=data, live="ledger")


def _oldest(context: Context, workers: Sequence[WorkerInfo]) -> dict[str, Any] | None:
    """Return since when the oldest due job has waited, of those that were looked at, and its task."""
    backlog = context.ledger.backlog(tasks=context.tasks(workers), limit=COUNT_LIMIT)
    oldest = min((each for each in backlog if each.due), key=lambda each: each.oldest_run_at, default=None)
    if oldest is None:
        return None
    return fields_of(oldest, "task", "queue", "state") | {"run_at": to_datetime(oldest.oldest_run_at)}


def _saved(context: Context) -> dict[str, Any]:
    """Return the tasks and submitters with the most duplicates, and the sums of all of their duplicates."""
    return {
        by.value: [
            fields_of(each, "name", "runs", "seconds")
            for each in summarize_duplicates(context.ledger, by, limit=TOP, mean_of=context.mean_of)
        ]
        for by in (GroupBy.TASK, GroupBy.SUBMITTER)
    }


OVERVIEW = View("overview", "/", _build_overview)


GROUPS = 50
"""How many groups are listed."""
HISTORY_DAYS = 8
ARGUMENTS_EXAMPLE = '{"order_id": 42}'


def _build_duplicates(context: Context, request: PageRequest) -> Page:
    groupings = [each.value for each in GroupBy if context.redact is None or each is not GroupBy.IDENTITY]
    by = GroupBy(request.parameters.choice("by", tuple(groupings)))
    length = HISTORY_DAYS * 86_400.0
    activity = read_activity(context.ledger, Period.HOUR, length=length, now=request.now, mean_of=context.mean_of)
    data = {
        "by": by.value,
        "groupings": groupings,
        "groups": context.stats.get(by, lambda: _duplicate_groups(context, by)),
        "days": by_day(activity, request.zone),
        "hours": by_hour_of_day(activity, request.zone),
        "rules": [uniqueness_rule(task) for task in tasks_of(context.app).values()],
        "trial": _trial(context, request),
        "can_check": context.redact is None,
    }
    return Page(template="duplicates.html", title="Duplicates", data=data, rows="groups", live="ledger")


def _duplicate_groups(context: Context, by: GroupBy) -> list[dict[str, Any]]:
    found = summarize_duplicates(context.ledger, by, limit=GROUPS, mean_of=context.mean_of)
    return [_duplicate_group(each, by) for each in found]


def _duplicate_group(summary: DuplicateSummary, by: GroupBy) -> dict[str, Any]:
    counts = {outcome.value: count for outcome, count in summary.counts.items()}
    tasks = sorted(summary.tasks, key=lambda task: (-summary.tasks[task], task))
    return {
        "name": summary.name, "by": by.value, "tasks": tasks, "total": sum(counts.values()),
        "runs_saved": summary.runs, "seconds_saved": summary.seconds, **counts, "redelivered": summary.redelivered,
    }  # fmt: skip


def uniqueness_rule(task: Any) -> dict[str, Any]:
    """Return what makes two calls of a task equal, for how long, and what happens to a duplicate."""
    options = options_of(task)
    unique_on = task.unique_on
    if unique_on is None:
        arguments = "all arguments"
    elif callable(unique_on):
        arguments = "a function of the arguments"
    else:
        arguments = ", ".join(map(str, unique_on)) or "the task alone"
    seconds = options.unique_for
    if options.unique_until == "started":
        window = "until its run starts"
    elif seconds is None:
        window = "until it has ended"
    else:
        window = f"until {seconds} s after its success" if isinstance(seconds, int | float) else f"for each {seconds}"
    on_duplicate = str(task.on_duplicate or DEFAULT)
    return {"task": options.task, "unique_on": arguments, "window": window, "on_duplicate": on_duplicate}


def _trial(context: Context, request: PageRequest) -> dict[str, Any]:
    """Return whether a submission with the given arguments would be a duplicate, and of which job."""
    task, text = request.parameters.text("task"), request.parameters.text("arguments") or ""
    trial: dict[str, Any] = {"task": task, "text": text, "example": ARGUMENTS_EXAMPLE, "error": None, "answer": None}
    if task is None:
        return trial
    context.check_values_shown("guessing their arguments")
    is_list = text.lstrip().startswith("[")
    try:
        given = parse_arguments(text or "{}", "arguments", list if is_list else dict)
        check = check_duplicate(context.app, task, given if is_list else [], {} if is_list else given)
    except (ValueError, OneJobError) as error:
        return trial | {"error": str(error)}
    existing = None if check.existing is None else job_row(context, check.existing)
    answer = fields_of(check, "identity", "hashed_text", "outcome", "reason")
    return trial | {"answer": answer | {"existing": existing}}


DUPLICATES = View("duplicates", "/duplicates", _build_duplicates)


def _build_tasks(context: Context, request: PageRequest) -> Page:
    window = request.parameters.choice("window", tuple(WINDOWS))
    period, length = WINDOWS[window]
    activity = read_activity(context.ledger, period, length=length, now=request.now, mean_of=context.mean_of)
    by_task = activity.by_task()
    waiting: dict[str, int] = {}
    known = context.tasks(context.ledger.workers())
    for each in context.ledger.backlog(tasks=known, limit=COUNT_LIMIT):
        if each.state is not State.RUNNING:
            waiting[each.task] = waiting.get(each.task, 0) + each.count
    rules = {name: uniqueness_rule(task) for name, task in tasks_of(context.app).items()}
    rows = [
        rules.get(name, {"task": name} | dict.fromkeys(("unique_on", "window", "on_duplicate"), ""))
        | {"waiting": waiting.get(name, 0)}
        | (row := stats_row(by_task.get(name, Stats())))
        | {"runs_per_minute": row["runs"] * 60.0 / length}
        for name in sorted({*known, *by_task})
    ]
    times = {"now": to_datetime(request.now), "begin": to_datetime(request.now - length)}
    data = {"window": window, "windows": list(WINDOWS), "tasks": rows, **times}
    return Page(template="tasks.html", title="Tasks", data=data, rows="tasks", live="ledger")


TASKS = View("tasks", "/tasks", _build_tasks)
