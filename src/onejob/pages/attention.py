"""The problems that need a person: stuck jobs, schedules that fail, webhooks that are not delivered."""

from collections import Counter
from itertools import islice
from typing import Any

from onejob.api.job_reads import COUNT_LIMIT
from onejob.celery.app_state import app_state_of
from onejob.celery.submission.options import tasks_of
from onejob.client.schedules import ScheduleEntry
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.ledger.search import iterate_jobs
from onejob.ledger.stuck import SCAN_LIMIT, Snapshot, why_stuck
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.pages.context import Context

UNDELIVERED = (State.RETRYING, State.FAILED)
"""The states of a webhook after failed attempts, without a successful attempt."""


def read_attention(context: Context) -> dict[str, Any]:
    """Return the numbers of stuck jobs, of failing schedule entries, and of undelivered webhooks."""
    return {
        "stuck": _count_stuck(context),
        "schedules": _count_failing_schedules(context),
        "webhooks": _count_undelivered(context),
    }


def _count_stuck(context: Context) -> dict[str, Any]:
    """Return how many of the newest unsettled jobs are stuck, whether all were examined, and the reasons."""
    ledger = context.ledger
    snapshot = Snapshot.of(ledger)
    jobs = [*islice(iterate_jobs(ledger, Query(unsettled=True)), SCAN_LIMIT)]
    reasons = Counter(str(reason) for job in jobs if (reason := why_stuck(ledger, job, snapshot)))
    main = reasons.most_common(1)
    return {
        "count": reasons.total(), "is_complete": len(jobs) < SCAN_LIMIT, "reason": main[0][0] if main else "",
    }  # fmt: skip


def _count_failing_schedules(context: Context) -> dict[str, Any]:
    """Return how many schedule entries fail (1 for an invalid schedule), their names, and whether workers run it."""
    runs = app_state_of(context.app).settings.beat
    try:
        entries = context.operator().list_schedules()
    except OneJobError as error:
        return {"runs": runs, "failing": 1, "reason": str(error)}
    states = last_states(context, entries)
    failing = [each for each in entries if each.error or states.get(each.last_job) is State.FAILED]
    return {"runs": runs, "failing": len(failing), "reason": ", ".join(each.name for each in failing[:3])}


def last_states(context: Context, entries: list[ScheduleEntry]) -> dict[str, State]:
    """Return by id the states of the jobs, if still in the ledger, that answered the last ticks of entries."""
    jobs = tasks_of(context.app)
    ids = [each.last_job for each in entries if each.last_job and each.task in jobs]
    return {job.id: job.state for job in context.ledger.get_many(ids).values()} if ids else {}


def _count_undelivered(context: Context) -> dict[str, Any]:
    """Return the numbers of webhooks that are tried again, that were given up, and of both."""
    counts = context.ledger.counts(Query(task=WEBHOOK_TASK), limit=COUNT_LIMIT)
    return {state.value: counts.get(state, 0) for state in UNDELIVERED} | {"total": sum(counts.values())}
