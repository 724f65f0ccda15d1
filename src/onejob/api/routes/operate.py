"""Canceling jobs and redriving dead letters."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

from fastapi import Body, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import requires_role
from onejob.api.callers import permissions_of
from onejob.api.problems import Problem
from onejob.api.response_models import EmptyBody, RedriveResult, job_view
from onejob.api.routes.jobs import ID_LIMIT
from onejob.celery.control import broadcast_cancel, redrive
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.ledger.dead_letters import Selection, bulk_apply

if TYPE_CHECKING:
    from celery import Celery

    from onejob.api.routes.jobs import JobRoutes
    from onejob.jobs.model import Job

logger = logging.getLogger("onejob.api")

EMPTY = EmptyBody()
JsonObject = Annotated[EmptyBody, Body()]
Filter = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00]*$")]
JobId = Annotated[str, StringConstraints(min_length=1, max_length=ID_LIMIT, pattern=r"^[^\x00]*$")]


class RedriveRequest(BaseModel):
    """The dead letters to redrive: those with these ids, or those that match the filter, newest first."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job_ids: list[JobId] = Field(default_factory=list, max_length=1000)
    task: Filter | None = None
    error: Filter | None = Field(None, description="A substring of the failure reason.")
    all: bool = Field(default=False, description="All dead letters, up to the limit.")
    limit: int = Field(100, ge=1, le=1000)
    dry_run: bool = Field(default=False, description="Only list the dead letters that would be redriven.")
    forget_steps: bool = Field(default=False, description="Run completed steps again.")

    @property
    def selection(self) -> Selection:
        """The dead letters to redrive. Raises `ValueError` unless there are either ids or a filter."""
        return Selection(job_ids=self.job_ids, task=self.task, error=self.error, everything=self.all, limit=self.limit)

    @model_validator(mode="after")
    def check_selection(self) -> Self:
        """Raise `ValueError` unless there are either ids or a filter."""
        _ = self.selection
        return self


@dataclass(frozen=True, slots=True)
class OperateRoutes:
    """The endpoints that change jobs, for one app."""

    app: Celery
    job_routes: JobRoutes

    @requires_role(Role.OPERATE)
    def cancel(self, job_id: str, request: Request, *, force: bool = False, body: JsonObject = EMPTY) -> Response:  # noqa: ARG002 - validated to be empty
        """Cancel a job: at once if it is not running (200), otherwise by a request to the run (202).

        `force`: the worker is notified at once, and terminates the run.
        """
        before = self._get(job_id, "cancel", request)
        if not before.state.final:
            job = self.job_routes.ledger.cancel(job_id, force=force, reason=_reason("canceled", request))
            if force and not job.state.final:
                self._notify_workers(job_id)
            if not job.state.final or job.state is State.CANCELED:
                return _job_response(job, 200 if job.state.final else 202)
            before = job
        raise Problem("job-ended", f"the job is {before.state}", job_id=job_id, state=str(before.state))

    @requires_role(Role.OPERATE)
    def redrive(
        self,
        job_id: str,
        request: Request,
        *,
        forget_steps: bool = False,
        body: JsonObject = EMPTY,  # noqa: ARG002 - as above
    ) -> Response:
        """Redrive a dead letter, which keeps its completed steps."""
        job, reason = self._get(job_id, "redrive", request), _reason("redriven", request)
        redriven = redrive(self.job_routes.ledger, job, forget_steps=forget_steps, reason=reason, app=self.app)
        return _job_response(redriven, 202)

    @requires_role(Role.OPERATE)
    def redrive_many(self, body: RedriveRequest, request: Request) -> RedriveResult:
        """Redrive many dead letters: those with some ids, of a task or with an error, or all.

        If one cannot be redriven, the others still are; `refused` has the reason.
        """
        ledger, reason = self.job_routes.ledger, _reason("redriven", request)
        permissions = permissions_of(request)

        def redrive_one(job: Job) -> None:
            if not permissions.allows("redrive", job):
                msg = f"{permissions.caller.name!r} is not permitted to redrive job {job.id}"
                raise OneJobError(msg)
            redrive(ledger, job, forget_steps=body.forget_steps, reason=reason, app=self.app)

        result = bulk_apply(permissions.reader(ledger), body.selection, redrive_one, dry_run=body.dry_run)
        return RedriveResult(dry_run=body.dry_run, done=result.done, refused=result.refused)

    def _get(self, job_id: str, action: str, request: Request) -> Job:
        """Return a job that the caller sees. Raises `Problem` if it may not do this to the job."""
        permissions = permissions_of(request)
        job = self.job_routes.get(job_id, permissions)
        permissions.check(action, job)
        return job

    def _notify_workers(self, job_id: str) -> None:
        error = broadcast_cancel(self.app, job_id)
        if error is not None:
            logger.warning(
                "the workers will see at their next heartbeat that job %r is canceled, since the broker failed: %r",
                job_id,
                error,
            )


def _reason(action: str, request: Request) -> str:
    caller = request.state.caller.name
    return f"{action} over HTTP by {caller}" if caller else f"{action} over HTTP"


def _job_response(job: Job, status: int) -> Response:
    return Response(job_view(job).model_dump_json(), status, media_type="application/json")
