"""Duplicates: who submits the same twice, for what, how often and at which hour; what that saved; and a box to try."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onejob.celery.duplicate_check import check_duplicate
from onejob.celery.options import options_of, tasks_of
from onejob.errors import OneJobError
from onejob.jobs.records import Period
from onejob.ledger.activity import read_activity
from onejob.ledger.duplicate_stats import DuplicateSummary, summarize_duplicates
from onejob.pages.activity_rows import by_day, by_hour_of_day
from onejob.pages.job_rows import job_row
from onejob.pages.rendering import Page
from onejob.pages.views.view import View
from onejob.stores.protocol import GroupBy
from onejob.uniqueness.on_duplicate import DEFAULT

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit

GROUPS = 50
"""How many groups are listed."""
DAYS = 8
ARGUMENTS_EXAMPLE = '{"order_id": 42}'


def _build(site: Site, visit: Visit) -> Page:
    groupings = [each.value for each in GroupBy if site.redact is None or each is not GroupBy.IDENTITY]
    by = GroupBy(visit.parameters.choice("by", tuple(groupings)))
    activity = read_activity(site.ledger, Period.HOUR, length=DAYS * 86_400.0, now=visit.now)
    data = {
        "by": by.value,
        "groupings": groupings,
        "groups": site.figures.get(by, lambda: _groups(site, by)),
        "days": by_day(activity, visit.zone),
        "hours": by_hour_of_day(activity, visit.zone),
        "rules": _rules(site),
        "trial": _trial(site, visit),
        "can_check": site.redact is None,
    }
    return Page(template="duplicates.html", title="Duplicates", data=data, rows="groups", live="ledger")


def _groups(site: Site, by: GroupBy) -> list[dict[str, Any]]:
    return [_group(each, by) for each in summarize_duplicates(site.ledger, by, limit=GROUPS)]


def _group(summary: DuplicateSummary, by: GroupBy) -> dict[str, Any]:
    counts = {outcome.value: count for outcome, count in summary.counts.items()}
    tasks = sorted(summary.tasks, key=lambda task: (-summary.tasks[task], task))
    return {
        "name": summary.name, "by": by.value, "tasks": tasks, "total": sum(counts.values()),
        "runs_saved": summary.runs, "seconds_saved": summary.seconds, **counts, "redelivered": summary.redelivered,
    }  # fmt: skip


def _rules(site: Site) -> list[dict[str, Any]]:
    return [uniqueness_rule(task) for task in tasks_of(site.app).values()]


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


def _trial(site: Site, visit: Visit) -> dict[str, Any]:
    """Return whether a submission with the given arguments would be a duplicate, and of which job."""
    task, text = visit.parameters.text("task"), visit.parameters.text("arguments") or ""
    trial: dict[str, Any] = {"task": task, "text": text, "example": ARGUMENTS_EXAMPLE, "error": None, "answer": None}
    if task is None:
        return trial
    site.check_values_shown("guessing their arguments")
    try:
        args, kwargs = parse_arguments(text)
        check = check_duplicate(site.app, task, args, kwargs)
    except (ValueError, OneJobError) as error:
        return trial | {"error": str(error)}
    existing = None if check.existing is None else job_row(site, check.existing)
    return trial | {"answer": {
        "identity": check.identity, "hashed_text": check.hashed_text, "outcome": check.outcome.value,
        "reason": check.reason, "existing": existing,
    }}  # fmt: skip


def parse_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in a JSON text: an object of named ones, or an array of positional ones.

    Raises `ValueError` with what was expected.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        msg = f"the arguments are not valid JSON ({error}); write an object, such as {ARGUMENTS_EXAMPLE}, or an array"
        raise ValueError(msg) from error
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list):
        return value, {}
    msg = f"the arguments are a JSON object, such as {ARGUMENTS_EXAMPLE}, or an array, not {text:.50}"
    raise ValueError(msg)


DUPLICATES = View("duplicates", "/duplicates", _build)
