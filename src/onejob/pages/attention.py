"""What needs somebody: stuck jobs, schedules that fail, webhooks that are not delivered."""

from collections import Counter
from itertools import islice
from typing import Any

from onejob.api.job_reads import COUNT_LIMIT
from onejob.celery.app_state import app_state_of
from onejob.celery.beat import ScheduleEntry, list_entries
from onejob.celery.options import tasks_of
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.ledger.bulk import iterate_jobs
from onejob.ledger.stuck import SCAN_LIMIT, Snapshot, why_stuck
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.pages.context import Context

UNDELIVERED = (State.RETRYING, State.FAILED)
"""The states of a webhook of which an attempt has failed, and none has succeeded."""


def read_attention(context: Context) -> dict[str, Any]:
    """Return how many jobs are stuck, entries of the schedule fail, and webhooks are not delivered."""
    return {
        "stuck": _count_stuck(context),
        "schedules": _count_failing_schedules(context),
        "webhooks": _count_undelivered(context),
    }


def _count_stuck(context: Context) -> dict[str, Any]:
    """Return how many of the newest jobs that have not ended are stuck, and whether these are all, with the reasons."""
    ledger = context.ledger
    snapshot = Snapshot.of(ledger)
    jobs = [*islice(iterate_jobs(ledger, Query(unsettled=True)), SCAN_LIMIT)]
    reasons = Counter(str(reason) for job in jobs if (reason := why_stuck(ledger, job, snapshot)))
    main = reasons.most_common(1)
    return {
        "count": reasons.total(), "is_complete": len(jobs) < SCAN_LIMIT, "reason": main[0][0] if main else "",
    }  # fmt: skip


def _count_failing_schedules(context: Context) -> dict[str, Any]:
    """Return how many entries of the schedule fail, with names, and whether workers run it; one if it is invalid."""
    runs = app_state_of(context.app).settings.beat
    try:
        entries = list_entries(context.app, context.ledger)
    except OneJobError as error:
        return {"runs": runs, "failing": 1, "reason": str(error)}
    states = last_states(context, entries)
    failing = [each for each in entries if each.error or states.get(each.last_job) is State.FAILED]
    return {"runs": runs, "failing": len(failing), "reason": ", ".join(each.name for each in failing[:3])}


def last_states(context: Context, entries: list[ScheduleEntry]) -> dict[str, State]:
    """Return the states of the jobs that answered the last ticks of entries, by id; of those that are in the ledger."""
    jobs = tasks_of(context.app)
    ids = [each.last_job for each in entries if each.last_job and each.task in jobs]
    return {job.id: job.state for job in context.ledger.get_many(ids).values()} if ids else {}


def _count_undelivered(context: Context) -> dict[str, Any]:
    """Return how many webhooks are tried again, how many were given up, and how many there are in all."""
    counts = context.ledger.counts(Query(task=WEBHOOK_TASK), limit=COUNT_LIMIT)
    return {state.value: counts.get(state, 0) for state in UNDELIVERED} | {"total": sum(counts.values())}
