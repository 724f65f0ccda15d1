"""Liveness, readiness and metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request  # noqa: TC002 - FastAPI evaluates the hints
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import requires_role
from onejob.api.callers import permissions_of
from onejob.api.problems import Problem
from onejob.celery.control import connect_to_broker
from onejob.celery.prometheus import CONTENT_TYPE, cached_metrics
from onejob.celery.ttl_cache import TTLCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob.api")
T = TypeVar("T")

CACHE_SECONDS = 1.0
"""How long results are cached, so that frequent probes do not reach the store and the broker."""


class HealthRoutes:
    """The endpoints for probes and scrapers, for one app and its ledger."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._broker = TTLCache(self._connect_to_broker, CACHE_SECONDS)
        self._worker_count = TTLCache(lambda: len(ledger.store.workers()), CACHE_SECONDS)
        self._metrics = cached_metrics(ledger)

    @requires_role(None)
    async def healthz(self) -> dict[str, str]:
        """Respond, as a liveness probe."""
        return {"status": "ok"}

    @requires_role(None)
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

    @requires_role(Role.READ)
    def metrics(self, request: Request) -> Response:
        """Return the metrics of the ledger in the Prometheus text format."""
        permissions_of(request).check_operator()
        return Response(self._metrics(), headers={"content-type": CONTENT_TYPE})

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
