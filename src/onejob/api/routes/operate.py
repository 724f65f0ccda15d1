"""Calling jobs off, and sending dead letters again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

from fastapi import Body, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import needs
from onejob.api.problems import Problem
from onejob.api.response_models import Nothing, Redriven, view_of
from onejob.api.routes.jobs import ID_LIMIT
from onejob.celery.control import broadcast_cancel, redrive
from onejob.jobs.lifecycle import State
from onejob.ledger.dead_letters import Selection, bulk_apply

if TYPE_CHECKING:
    from celery import Celery

    from onejob.api.routes.jobs import Reading
    from onejob.jobs.model import Job

logger = logging.getLogger("onejob.api")

NOTHING = Nothing()
Said = Annotated[Nothing, Body()]
Part = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00]*$")]
JobId = Annotated[str, StringConstraints(min_length=1, max_length=ID_LIMIT, pattern=r"^[^\x00]*$")]


class Redrive(BaseModel):
    """Which dead letters to send again: those of some ids, or those that a filter finds, the newest first."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job_ids: list[JobId] = Field(default_factory=list, max_length=1000)
    task: Part | None = None
    error: Part | None = Field(None, description="A part of the reason.")
    all: bool = Field(default=False, description="Without a filter: all of them, up to the limit.")
    limit: int = Field(100, ge=1, le=1000)
    dry_run: bool = Field(default=False, description="Only tell which ones would be sent again.")
    forget_steps: bool = Field(default=False, description="Begin from nothing, not after the steps that are done.")

    @property
    def choice(self) -> Selection:
        """Which dead letters are meant. Raises `ValueError` for neither or both ways."""
        return Selection(job_ids=self.job_ids, task=self.task, error=self.error, everything=self.all, limit=self.limit)

    @model_validator(mode="after")
    def check_choice(self) -> Self:
        """Refuse what chooses nothing, or in two ways."""
        _ = self.choice
        return self


@dataclass(frozen=True, slots=True)
class Operating:
    """The endpoints, for one app."""

    app: Celery
    reading: Reading

    @needs(Role.OPERATE)
    def cancel(self, job_id: str, request: Request, *, force: bool = False, said: Said = NOTHING) -> Response:  # noqa: ARG002 - it is checked to be nothing
        """Cancel a job: at once before a run (200), by asking the run to stop otherwise (202).

        `force`: its worker is told at once, and ends it.
        """
        before = self.reading.found(job_id)
        if not before.state.final:
            job = self.reading.ledger.cancel(job_id, force=force, reason=_reason("canceled", request))
            if force and not job.state.final:
                self._tell_workers(job_id)
            if not job.state.final or job.state is State.CANCELED:
                return _shown(job, 200 if job.state.final else 202)
            before = job
        raise Problem("job-ended", f"the job is {before.state}", job_id=job_id, state=str(before.state))

    @needs(Role.OPERATE)
    def redrive(
        self,
        job_id: str,
        request: Request,
        *,
        forget_steps: bool = False,
        said: Said = NOTHING,  # noqa: ARG002 - as above
    ) -> Response:
        """Send a dead letter again, with the steps it has done; a worker's sweep publishes it."""
        job, reason = self.reading.found(job_id), _reason("redriven", request)
        return _shown(redrive(self.reading.ledger, job, forget_steps=forget_steps, reason=reason), 202)

    @needs(Role.OPERATE)
    def redrive_many(self, asked: Redrive, request: Request) -> Redriven:
        """Send many dead letters again: those of some ids, or those of a task or with an error, or all.

        One that cannot be sent again does not stop the others; `refused` tells why.
        """
        ledger, reason = self.reading.ledger, _reason("redriven", request)

        def send(job: Job) -> None:
            redrive(ledger, job, forget_steps=asked.forget_steps, reason=reason)

        result = bulk_apply(ledger, asked.choice, send, dry_run=asked.dry_run)
        return Redriven(dry_run=asked.dry_run, done=result.done, refused=result.refused)

    def _tell_workers(self, job_id: str) -> None:
        error = broadcast_cancel(self.app, job_id)
        if error is not None:
            logger.warning("the workers learn with their next heartbeat that job %r is canceled: %r", job_id, error)


def _reason(what: str, request: Request) -> str:
    caller = request.state.caller.name
    return f"{what} over HTTP by {caller}" if caller else f"{what} over HTTP"


def _shown(job: Job, status: int) -> Response:
    return Response(view_of(job).model_dump_json(), status, media_type="application/json")
