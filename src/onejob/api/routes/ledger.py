"""The endpoints about a whole ledger: liveness, readiness, metrics, queues, schedules, activity, and audit log."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from celery import Celery
from fastapi import Query, Request
from starlette.responses import Response

from onejob.api.callers import permissions_of
from onejob.api.problems import Problem
from onejob.api.response_models import EntryRun
from onejob.api.routes.jobs import Limit
from onejob.api.routes.operate import operator_of
from onejob.celery.messages.broker import connect_to_broker
from onejob.client.operator import Operator
from onejob.client.schedules import ScheduleEntry
from onejob.concurrency.batching import PerEventLoop, TTLCache
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.metric_buckets import Period
from onejob.ledger.ledger import Ledger
from onejob.ledger.stats import LENGTHS, QueueLoad, activity_to_dict, read_activity, read_queues
from onejob.prometheus import CONTENT_TYPE, COST_FACTOR, cached_metrics

logger = logging.getLogger("onejob.api")
T = TypeVar("T")

CACHE_SECONDS = 1.0
"""Seconds for which results are cached, so that frequent probes do not reach the store and the broker."""
PROBE_WAIT = 5.0
"""Seconds for which a readiness probe waits for the end of earlier probes."""
Before = Annotated[int | None, Query(ge=1, le=2**62, description="The `id` of the last entry of the previous page.")]


class LedgerRoutes:
    """The endpoints about a whole ledger, for one app; most take `check_operator` as a dependency."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._broker = TTLCache(self._connect_to_broker, CACHE_SECONDS)
        self._worker_count = TTLCache(lambda: len(ledger.store.workers()), CACHE_SECONDS)
        self._probes = PerEventLoop(lambda: CapacityLimiter(1))
        self._metrics = cached_metrics(ledger)
        self._queues = TTLCache(lambda: read_queues(ledger), CACHE_SECONDS, cost_factor=COST_FACTOR)

    async def healthz(self) -> dict[str, str]:
        """Respond, as a liveness probe."""
        return {"status": "ok"}

    async def readyz(self, *, workers: bool = False) -> dict[str, Any]:
        """Check that the ledger is available, and report whether the broker is, and how many workers there are.

        Without the broker jobs are still accepted, and published when it is back: `status` is `degraded` then.
        `workers`: require at least one worker. By default none is required, since jobs can be submitted without one.
        """
        # One probe at a time, since anybody may send probes, and each holds a thread for as long as a store or a broker
        # is silent.
        try:
            with fail_after(PROBE_WAIT):
                return await to_thread.run_sync(self._check_readiness, workers, limiter=self._probes.current())
        except TimeoutError:
            checks = {"store": False, "broker": False}
            detail = f"an earlier probe has found no answer within {PROBE_WAIT:g} s"
            raise Problem("not-ready", detail, checks=checks, workers=None) from None

    def _check_readiness(self, needs_workers: bool) -> dict[str, Any]:  # noqa: FBT001 - the API of a thread
        count = _call_or_log("the store", self._worker_count)
        checks = {"store": count is not None, "broker": _call_or_log("the broker", self._broker) is not None}
        if count is None:
            raise Problem("not-ready", "the store is unavailable", checks=checks, workers=count)
        if needs_workers and not count:
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
        """Return the activity of the last hour by minute, or of the last seven days by hour.

        Refused to a caller that is limited to its own jobs or to some tasks.
        """
        return activity_to_dict(read_activity(self._ledger, period, length=LENGTHS[period]))

    def list_audit(self, before: Before = None, limit: Limit = 50) -> Sequence[AuditEntry]:
        """List the audit log, newest first: the actions of operators, and refused requests."""
        return self._ledger.audit(limit=limit, before=before)

    def list_schedules(self, request: Request) -> Sequence[ScheduleEntry]:
        """List the entries of the beat schedule by name, with their next and last ticks."""
        return self._operator(request).list_schedules()

    def pause_schedule(self, entry: str, request: Request) -> ScheduleEntry:
        """Pause an entry: it has no ticks until it is resumed."""
        return self._operator(request).set_paused(entry, paused=True)

    def resume_schedule(self, entry: str, request: Request) -> ScheduleEntry:
        """Resume an entry. The ticks of the pause are not made up for."""
        return self._operator(request).set_paused(entry, paused=False)

    def run_schedule(self, entry: str, request: Request) -> EntryRun:
        """Submit the call of an entry now, besides its ticks. An equal job that is live answers, as always."""
        check = partial(permissions_of(request).check, "submit")
        return EntryRun(job_id=self._operator(request).run_entry(entry, check=check))

    def _operator(self, request: Request) -> Operator:
        return operator_of(request, self._app, self._ledger)

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
