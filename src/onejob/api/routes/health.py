"""Telling whether the server is well, and what has been counted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import needs
from onejob.api.problems import Problem
from onejob.api.prometheus import CONTENT_TYPE, render_metrics
from onejob.api.ttl_cache import TTLCache
from onejob.celery.control import broker

if TYPE_CHECKING:
    from celery import Celery

    from onejob.jobs.records import WorkerInfo
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob.api")

GOOD_FOR = 1.0
"""For how many seconds an answer is told again: who asks often asks this server, and not what it needs."""

REST = 9.0
"""To count the jobs of a large ledger takes long: a scraper may keep the store busy for a tenth of the time."""


class Health:
    """The endpoints, for one app and its ledger."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._broker = TTLCache(self._connect, GOOD_FOR)
        self._nodes = TTLCache(self._ask_nodes, GOOD_FOR)
        self._exposition = TTLCache(lambda: render_metrics(ledger), GOOD_FOR, rest=REST)

    def _ask_nodes(self) -> list[WorkerInfo]:
        return self._ledger.store.workers()

    @needs(None)
    async def healthz(self) -> dict[str, str]:
        """Tell that the server answers."""
        return {"status": "ok"}

    @needs(None)
    def readyz(self, *, workers: bool = False) -> dict[str, Any]:
        """Tell whether the ledger and the broker answer, and how many worker nodes there are.

        `workers`: to have none is not to be ready; otherwise jobs are taken also while no worker is there.
        """
        nodes = _answer("the store", self._nodes)
        checks = {"store": nodes is not None, "broker": _answer("the broker", self._broker) is not None}
        count = None if nodes is None else len(nodes)
        if not all(checks.values()):
            detail = "not everything answers that this server needs"
            raise Problem("not-ready", detail, checks=checks, workers=count)
        if workers and not count:
            raise Problem("not-ready", "no worker has given a sign of life lately", checks=checks, workers=count)
        return {"status": "ok", "checks": checks, "workers": count}

    @needs(Role.READ)
    def metrics(self) -> Response:
        """Return the metrics of the ledger, in the text format of Prometheus."""
        return Response(self._exposition(), headers={"content-type": CONTENT_TYPE})

    def _connect(self) -> bool:
        with broker(self._app):
            return True


def _answer(name: str, ask: Any) -> Any:
    """Return an answer; None when there is none."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, it is no answer
        logger.warning("%s does not answer: %r", name, error)
        return None
