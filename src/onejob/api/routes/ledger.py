"""What is about a whole ledger: liveness, readiness, metrics, queues, schedules, the activity, and the audit log."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from celery import Celery
from fastapi import Query, Request
from starlette.responses import Response

from onejob.api.callers import permissions_of
from onejob.api.problems import Problem
from onejob.api.response_models import EntryRun
from onejob.api.routes.jobs import Limit
from onejob.celery.batching import TTLCache
from onejob.celery.beat import ScheduleEntry, list_entries, run_entry, set_paused
from onejob.celery.operations import connect_to_broker
from onejob.celery.worker.metrics import CONTENT_TYPE, COST_FACTOR, cached_metrics
from onejob.jobs.records import AuditEntry, Period
from onejob.ledger.ledger import Ledger
from onejob.ledger.stats import LENGTHS, QueueLoad, activity_to_dict, read_activity, read_queues

logger = logging.getLogger("onejob.api")
T = TypeVar("T")

CACHE_SECONDS = 1.0
"""How long results are cached, so that frequent probes do not reach the store and the broker."""
Before = Annotated[int | None, Query(ge=1, le=2**62, description="The `id` of the last entry of the previous page.")]


class LedgerRoutes:
    """The endpoints about a whole ledger, for one app; most take `check_operator` as a dependency."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._broker = TTLCache(self._connect_to_broker, CACHE_SECONDS)
        self._worker_count = TTLCache(lambda: len(ledger.store.workers()), CACHE_SECONDS)
        self._metrics = cached_metrics(ledger)
        self._queues = TTLCache(lambda: read_queues(ledger), CACHE_SECONDS, cost_factor=COST_FACTOR)

    async def healthz(self) -> dict[str, str]:
        """Respond, as a liveness probe."""
        return {"status": "ok"}

    def readyz(self, *, workers: bool = False) -> dict[str, Any]:
        """Check that the ledger is available, and report whether the broker is, and how many workers there are.

        Without the broker jobs are still accepted, and published when it is back: `status` is `degraded` then.
        `workers`: require at least one worker. By default none is required, since jobs can be submitted without one.
        """
        count = _call_or_log("the store", self._worker_count)
        checks = {"store": count is not None, "broker": _call_or_log("the broker", self._broker) is not None}
        if count is None:
            raise Problem("not-ready", "the store is unavailable", checks=checks, workers=count)
        if workers and not count:
            raise Problem("not-ready", "no worker has sent a heartbeat recently", checks=checks, workers=count)
        return {"status": "ok" if checks["broker"] else "degraded", "checks": checks, "workers": count}

    def metrics(self) -> Response:
        """Return the metrics of the ledger in the Prometheus text format."""
        return Response(self._metrics(), headers={"content-type": CONTENT_TYPE})

    def list_queues(self) -> Sequence[QueueLoad]:
        """List the queues with their due and running jobs, and the slots of their workers, for an autoscaler.

        Refused to a caller that is limited to its own jobs or to some tasks.
        """
        return self._queues()

    def get_activity(self, period: Period = Period.MINUTE) -> dict[str, Any]:
        """Return what happened in the last hour by minute, or in the last seven days by hour.

        Refused to a caller that is limited to its own jobs or to some tasks.
        """
        return activity_to_dict(read_activity(self._ledger, period, length=LENGTHS[period]))

    def list_audit(self, before: Before = None, limit: Limit = 50) -> Sequence[AuditEntry]:
        """List what operators did and which requests were refused, newest first."""
        return self._ledger.audit(limit=limit, before=before)

    def list_schedules(self) -> Sequence[ScheduleEntry]:
        """List the entries of the beat schedule by name, with their next and last ticks."""
        return list_entries(self._app, self._ledger)

    def pause_schedule(self, entry: str) -> ScheduleEntry:
        """Pause an entry: it has no ticks until it is resumed."""
        return set_paused(self._app, self._ledger, entry, paused=True)

    def resume_schedule(self, entry: str) -> ScheduleEntry:
        """Resume an entry. The ticks of the pause are not made up for."""
        return set_paused(self._app, self._ledger, entry, paused=False)

    def run_schedule(self, entry: str, request: Request) -> EntryRun:
        """Submit the call of an entry now, besides its ticks. An equal job that is live answers, as always."""
        permissions = permissions_of(request)
        check = partial(permissions.check, "submit")
        result = run_entry(self._app, entry, check=check, check_answer=permissions.check_answer)
        return EntryRun(job_id=result.id)

    def _connect_to_broker(self) -> bool:
        with connect_to_broker(self._app):
            return True


def _call_or_log(name: str, call: Callable[[], T]) -> T | None:
    """Return the result of a call; None, with a warning in the log, if it fails."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        logger.warning("%s is unavailable: %r", name, error)
        return None
