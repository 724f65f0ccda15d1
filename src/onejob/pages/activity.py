"""The pages with statistics by time: the overview, the tasks, and the duplicates with a form to check a call."""

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from onejob.api.job_reads import COUNT_LIMIT
from onejob.celery.submission.options import tasks_of
from onejob.client.jobs import check_duplicate, parse_arguments
from onejob.errors import OneJobError
from onejob.jobs.costs import COST_DAYS, CostsBy, day_of, day_text
from onejob.jobs.durations import DAY
from onejob.jobs.lifecycle import State
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import Outcome
from onejob.jobs.on_duplicate import DEFAULT
from onejob.jobs.public_view import fields_of
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.costs import amounts_text, cost_to_dict, read_costs, saved_by_name
from onejob.ledger.stats import Stats, mean_run, read_activity, summarize_duplicates
from onejob.pages.attention import read_attention
from onejob.pages.context import Context
from onejob.pages.job_rows import job_row
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, View
from onejob.stores.protocol import GroupBy

HOURS = 24
WINDOWS = {"hour": (Period.MINUTE, 3600.0), "day": (Period.HOUR, DAY), "week": (Period.HOUR, 7 * DAY)}
"""The windows of statistics by name: the period of a slot, and the window's seconds."""


def stats_row(stats: Stats) -> dict[str, Any]:
    """Return stats as numbers: submissions, runs by end, their times in seconds, and the saved runs and seconds."""
    submissions, prevented = stats.submissions.total(), stats.duplicates_prevented
    rejected, failed = stats.submissions[Outcome.REJECTED], stats.failed
    completed, retrying = stats.runs["completed"], stats.runs["retrying"]
    return {
        "submissions": submissions, "admitted": submissions - prevented - rejected, "prevented": prevented,
        "rejected": rejected, "seconds_saved": stats.seconds_saved, "runs": stats.runs.total(),
        "completed": completed, "failed": failed, "retrying": retrying,
        "other": stats.runs.total() - completed - failed - retrying, "lease_expiries": stats.lease_expiries,
        "failed_share": stats.failed_share, "run_mean": stats.run_times.mean,
        "run_p50": stats.run_times.quantile(0.5), "run_p95": stats.run_times.quantile(0.95),
        "wait_p50": stats.wait_times.quantile(0.5), "wait_p95": stats.wait_times.quantile(0.95),
    }  # fmt: skip


TOP = 5
"""The number of tasks and submitters with the most duplicates that are listed."""
CHOICES = ("hour", "day")
"""The windows that the overview offers."""


def _build_overview(context: Context, request: PageRequest) -> Page:
    ledger, workers, now = context.ledger, context.ledger.workers(), request.now
    window = request.choice("window", CHOICES)
    period, length = WINDOWS[window]
    activity = read_activity(ledger, period, length=length, now=now, mean_of=_mean_of(context))
    states = ledger.count_states(limit=COUNT_LIMIT)
    backlog = ledger.backlog(tasks=context.tasks(workers), limit=COUNT_LIMIT)
    oldest = min((each for each in backlog if each.due), key=lambda each: each.oldest_run_at, default=None)
    oldest_at = None if oldest is None else to_datetime(oldest.oldest_run_at)
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
        "oldest": oldest and fields_of(oldest, "task", "queue", "state") | {"run_at": oldest_at},
        "attention": context.stats.get("attention", lambda: read_attention(context)),
        "saved": context.stats.get("saved", lambda: _saved(context)),
        "is_new": not any(states.values()),
    }
    return Page(template="overview.html", title="Overview", data=data, live="ledger")


def _mean_of(context: Context) -> Callable[[str], float | None]:
    """Return the function that returns the mean run time of a task, the same for all figures of a page."""
    return lambda task: context.stats.get(("mean run", task), lambda: mean_run(context.ledger, task))


def _saved(context: Context) -> dict[str, Any]:
    """Return the tasks and submitters with the most duplicates, and the sums of their duplicates."""
    return {
        by.value: [
            fields_of(each, "name", "runs", "seconds")
            for each in summarize_duplicates(context.ledger, by, limit=TOP, mean_of=_mean_of(context))
        ]
        for by in (GroupBy.TASK, GroupBy.SUBMITTER)
    }


GROUPS = 50
HISTORY_DAYS = 8
ARGUMENTS_EXAMPLE = '{"order_id": 42}'


def _build_duplicates(context: Context, request: PageRequest) -> Page:
    groupings = [each.value for each in GroupBy if context.redact is None or each is not GroupBy.IDENTITY]
    by = GroupBy(request.choice("by", tuple(groupings)))
    length = HISTORY_DAYS * 86_400.0
    activity = read_activity(context.ledger, Period.HOUR, length=length, now=request.now, mean_of=_mean_of(context))
    days: dict[str, Stats] = defaultdict(Stats)
    hours = [Stats() for _ in range(HOURS)]
    for slot in activity.slots:
        begin, totals = datetime.fromtimestamp(slot.begin, request.zone), slot.totals()
        hours[begin.hour].merge(totals)
        days[begin.date().isoformat()].merge(totals)
    data = {
        "by": by.value,
        "groupings": groupings,
        "groups": context.stats.get(by, lambda: _groups(context, by)),
        "days": [{"day": day, **stats_row(stats)} for day, stats in sorted(days.items()) if stats.submissions],
        "hours": [{"hour": hour, **stats_row(stats)} for hour, stats in enumerate(hours)],
        "costs": context.stats.get("costs", lambda: _cost_rows(context)),
        "rules": [uniqueness_rule(task) for task in tasks_of(context.app).values()],
        "trial": _trial(context, request),
        "can_check": context.redact is None,
    }
    return Page(template="duplicates.html", title="Duplicates", data=data, rows="groups", live="ledger")


def _groups(context: Context, by: GroupBy) -> list[dict[str, Any]]:
    saved = _saved_costs(context, by)
    return [
        {
            "name": each.name,
            "by": by.value,
            "tasks": [task for task, _ in sorted(each.tasks.items(), key=lambda item: (-item[1], item[0]))],
            "total": sum(each.counts.values()),
            "runs_saved": each.runs,
            "seconds_saved": each.seconds,
            "cost_saved": amounts_text(saved.get(each.name, {}).items()),
            **{outcome.value: count for outcome, count in each.counts.items()},
            "redelivered": each.redelivered,
        }
        for each in summarize_duplicates(context.ledger, by, limit=GROUPS, mean_of=_mean_of(context))
    ]


def _saved_costs(context: Context, by: GroupBy) -> dict[str, dict[str, Decimal]]:
    """Return the costs saved by task or submitter, and unit; none by identity, which has no sums."""
    if by is GroupBy.IDENTITY:
        return {}
    first = day_of(context.ledger.read_clock()) - COST_DAYS
    return saved_by_name(read_costs(context.ledger, CostsBy(by.value), since=date.fromisoformat(day_text(first))))


def _cost_rows(context: Context) -> list[dict[str, str]]:
    """Return the amounts spent and saved on each of the last days, by unit."""
    return [cost_to_dict(each) for each in read_costs(context.ledger, CostsBy.DAY)]


def uniqueness_rule(task: Any) -> dict[str, Any]:
    """Return a task's rule of uniqueness in words: the arguments that count, the window, and the conflict policy."""
    options, unique_on = task._onejob, task.unique_on
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
    task, text = request.text("task"), request.text("arguments") or ""
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


def _build_tasks(context: Context, request: PageRequest) -> Page:
    window = request.choice("window", tuple(WINDOWS))
    period, length = WINDOWS[window]
    activity = read_activity(context.ledger, period, length=length, now=request.now, mean_of=_mean_of(context))
    by_task = activity.by_task()
    waiting: Counter[str] = Counter()
    known = context.tasks(context.ledger.workers())
    for each in context.ledger.backlog(tasks=known, limit=COUNT_LIMIT):
        if each.state is not State.RUNNING:
            waiting[each.task] += each.count
    rules = {name: uniqueness_rule(task) for name, task in tasks_of(context.app).items()}
    rows = [
        rules.get(name, {"task": name} | dict.fromkeys(("unique_on", "window", "on_duplicate"), ""))
        | {"waiting": waiting[name]}
        | (row := stats_row(by_task.get(name, Stats())))
        | {"runs_per_minute": row["runs"] * 60.0 / length}
        for name in sorted({*known, *by_task})
    ]
    times = {"now": to_datetime(request.now), "begin": to_datetime(request.now - length)}
    data = {"window": window, "windows": list(WINDOWS), "tasks": rows, **times}
    return Page(template="tasks.html", title="Tasks", data=data, rows="tasks", live="ledger")


OVERVIEW = View("overview", "/", _build_overview)
DUPLICATES = View("duplicates", "/duplicates", _build_duplicates)
TASKS = View("tasks", "/tasks", _build_tasks)
