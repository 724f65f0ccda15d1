"""Calling jobs off, sending dead letters again, and telling whether the server is well."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request  # noqa: TC002 - FastAPI reads the hints
from starlette.responses import Response

from onejob.api.guard import needs
from onejob.api.keys import Role
from onejob.api.problems import Problem
from onejob.api.views import view_of
from onejob.celery.message import waits_for_end
from onejob.job import Query
from onejob.lifecycle import State

if TYPE_CHECKING:
    from celery import Celery

    from onejob.api.reading import Reading
    from onejob.job import Job

logger = logging.getLogger("onejob.api")

BROKER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Operating:
    """The endpoints, for one app."""

    app: Celery
    reading: Reading

    @needs(Role.OPERATE)
    def cancel(self, job_id: str, request: Request, *, force: bool = False) -> Response:
        """Cancel a job: at once before a run (200), by asking the run to stop otherwise (202).

        `force`: the worker ends a run that does not stop by itself, with its next heartbeat.
        """
        before = self.reading.found(job_id)
        if not before.state.final:
            job = self.reading.ledger.cancel(job_id, force=force, reason=_reason("canceled", request))
            if not job.state.final or job.state is State.CANCELED:
                return _shown(job, 200 if job.state.final else 202)
            before = job
        raise Problem("job-ended", f"the job is {before.state}", job_id=job_id, state=str(before.state))

    @needs(Role.OPERATE)
    def redrive(self, job_id: str, request: Request, *, forget_steps: bool = False) -> Response:
        """Send a dead letter again, with the steps it has done; a worker's sweep publishes it."""
        canvas = waits_for_end(self.reading.found(job_id).options)
        reason = _reason("redriven", request)
        job = self.reading.ledger.redrive(job_id, forget_steps=forget_steps, canvas=canvas, reason=reason)
        return _shown(job, 202)

    @needs(None)
    async def healthz(self) -> dict[str, str]:
        """Tell that the server answers."""
        return {"status": "ok"}

    @needs(None)
    def readyz(self) -> dict[str, Any]:
        """Tell whether the ledger and the broker answer."""
        checks = {"store": self._store_answers(), "broker": self._broker_answers()}
        if not all(checks.values()):
            raise Problem("not-ready", "not everything answers that this server needs", checks=checks)
        return {"status": "ok", "checks": checks}

    def _store_answers(self) -> bool:
        return _answers("the store", lambda: self.reading.ledger.find(Query(limit=1)))

    def _broker_answers(self) -> bool:
        def connect() -> None:
            with self.app.connection_for_write(connect_timeout=BROKER_SECONDS) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=int(BROKER_SECONDS))

        return _answers("the broker", connect)


def _answers(name: str, ask: Any) -> bool:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, it is no answer
        logger.warning("%s does not answer: %r", name, error)
        return False
    return True


def _reason(what: str, request: Request) -> str:
    caller = request.state.caller
    return f"{what} over HTTP by {caller}" if caller else f"{what} over HTTP"


def _shown(job: Job, status: int) -> Response:
    return Response(view_of(job).model_dump_json(), status, media_type="application/json")
