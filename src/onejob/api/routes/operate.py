"""Operations on jobs: cancel, run now, redrive, delete; of one job, or of many."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from fastapi import Body, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import requires_role
from onejob.api.callers import permissions_of
from onejob.api.problems import Problem
from onejob.api.request_models import WHOLE, check_arguments
from onejob.api.response_models import (
    CURSOR_LIMIT,
    CURSOR_PATTERN,
    BulkPage,
    BulkView,
    Cursor,
    EmptyBody,
    decode_cursor,
    job_view,
    submit_response,
)
from onejob.api.routes.jobs import ID_LIMIT, JobFilter, Text
from onejob.celery.operations import Operation, edit, operate
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.ledger.bulk import Selection, bulk_apply
from onejob.ledger.dead_letters import PATTERN_LIMIT, GroupKey, in_group, select_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from onejob.api.routes.jobs import JobRoutes
    from onejob.jobs.model import Job
    from onejob.jobs.records import Query
    from onejob.ledger.bulk import BulkResult

BULK_SECONDS = 10.0
"""Seconds after which a bulk operation on the jobs of a filter returns, with the cursor of its next portion."""
EMPTY = EmptyBody()
JsonObject = Annotated[EmptyBody, Body()]
JobId = Annotated[str, StringConstraints(min_length=1, max_length=ID_LIMIT, pattern=r"^[^\x00]*$")]
JobIds = Annotated[list[JobId], Field(max_length=1000)]
Limit = Annotated[int, Field(ge=1, le=1000), WHOLE]


def _has(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object with such a value of this name."""
    return {"required": [name], "properties": {name: schema}}


TEXT = {"type": "string", "minLength": 1}
STATE_SCHEMA = {"type": "string", "enum": [*State]}
STATES_SCHEMA = {"anyOf": [STATE_SCHEMA, {"type": "array", "items": STATE_SCHEMA}], "description": "One or more."}
IDS = _has("job_ids", {"minItems": 1})


class RedriveRequest(BaseModel):
    """The dead letters to redrive: those with these ids, or those that match the filter, newest first."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "oneOf": [IDS, {"anyOf": [_has("task", TEXT), _has("error", TEXT), _has("all", {"const": True})]}]
        },
    )

    job_ids: JobIds = []
    task: Text | None = None
    error: Text | None = Field(None, description="A substring of the failure reason.")
    all: bool = Field(default=False, description="All dead letters, up to the limit.")
    limit: Limit = 100
    dry_run: bool = Field(default=False, description="Only list the dead letters that would be redriven.")
    forget_steps: bool = Field(default=False, description="Run completed steps again.")

    @property
    def selection(self) -> Selection:
        """The dead letters to redrive. Raises `ValueError` unless there are either ids or a filter."""
        return select_dead_letters(
            job_ids=self.job_ids, task=self.task, error=self.error, everything=self.all, limit=self.limit
        )

    @model_validator(mode="after")
    def check_selection(self) -> Self:
        """Raise `ValueError` unless there are either ids or a filter."""
        _ = self.selection
        return self


class EditRequest(BaseModel):
    """The new arguments; what is left out stays as it is."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"anyOf": [_has("args", {"type": "array"}), _has("kwargs", {"type": "object"})]},
    )

    args: list[Any] | None = Field(None, description="The positional arguments.")
    kwargs: dict[str, Any] | None = Field(None, description="The keyword arguments.")

    @model_validator(mode="after")
    def check_given(self) -> Self:
        """Raise `ValueError` without any arguments."""
        if self.args is None and self.kwargs is None:
            raise ValueError("give args, kwargs or both")
        return self


def _as_list(value: Any) -> Any:
    """Return a single state as a list of one."""
    return [value] if isinstance(value, str) else value


class BulkGroup(BaseModel):
    """The `task`, `error_type` and `pattern` of a group of dead letters."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: Text
    error_type: Text
    pattern: Annotated[str, StringConstraints(max_length=PATTERN_LIMIT, pattern=r"^[^\x00]*$")]

    def matches(self, job: Job) -> bool:
        """Return whether a job is in the group."""
        return in_group(job, GroupKey(self.task, self.error_type, self.pattern))


class BulkFilter(JobFilter):
    """The jobs of a bulk operation, combined with AND; without `state` those that the operation applies to."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra=lambda schema: schema.update(
            anyOf=[_has(name, {"not": {"enum": [None, []]}}) for name in schema["properties"]]
        ),
    )

    state: Annotated[
        list[Annotated[State, Field(strict=False)]], BeforeValidator(_as_list), WithJsonSchema(STATES_SCHEMA)
    ] = Field([])
    error: Text | None = Field(None, description="A substring of the reason.")
    group: BulkGroup | None = Field(None, description="Only the dead letters of this group.")


class BulkRequest(BaseModel):
    """An operation on the jobs with these ids, or on those that match the filter, newest first."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "oneOf": [
                IDS | {"not": {"anyOf": [_has("filter", {"type": "object"}), _has("cursor", {"type": "string"})]}},
                _has("filter", {"type": "object"}) | {"not": IDS},
            ]
        },
    )

    operation: Annotated[Operation, Field(strict=False)]
    job_ids: JobIds = []
    filter: BulkFilter | None = Field(None, description="At least one condition.")
    limit: Limit = Field(100, description="How many jobs of the filter are processed at most.")
    cursor: str | None = Field(
        None, max_length=CURSOR_LIMIT, description="`next` of the previous response to the same filter.",
        json_schema_extra={"pattern": CURSOR_PATTERN},
    )  # fmt: skip
    dry_run: bool = Field(default=False, description="Only list the jobs that the operation would be applied to.")
    forget_steps: bool = Field(default=False, description="Redriven jobs run completed steps again.")

    @property
    def selection(self) -> Selection:
        """The selected jobs. Raises `ValueError` unless there are either ids or a filter, `Problem` for the cursor."""
        if self.filter is None:
            return Selection(job_ids=self.job_ids)
        group = self.filter.group
        return Selection(query=self._query(self.filter), matches=None if group is None else group.matches)

    def _query(self, chosen: BulkFilter) -> Query:
        tasks = None if chosen.group is None else frozenset({chosen.group.task})
        return chosen.query(
            states=frozenset(chosen.state) or self.operation.states, tasks=tasks, reason=chosen.error,
            limit=self.limit, **decode_cursor(self.cursor),
        )  # fmt: skip

    @model_validator(mode="after")
    def check_selection(self) -> Self:
        """Raise `ValueError` unless there are either ids or a filter with a condition, and no cursor with ids."""
        if bool(self.job_ids) is (self.filter is not None):
            raise ValueError("give job ids or a filter, not both")
        if self.filter is not None and not any(value not in (None, []) for _, value in self.filter):
            raise ValueError("the filter has no condition")
        if self.job_ids and self.cursor is not None:
            raise ValueError("a cursor belongs to a filter, not to job ids")
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
        job = self._operate(Operation.FORCE_CANCEL if force else Operation.CANCEL, job_id, request)
        return _job_response(job, 202 if job is not None and not job.state.final else 200)

    @requires_role(Role.OPERATE)
    def run_now(self, job_id: str, request: Request, body: JsonObject = EMPTY) -> Response:  # noqa: ARG002 - as above
        """Make a delayed or retrying job due at once. One that is due already is unchanged."""
        return _job_response(self._operate(Operation.RUN_NOW, job_id, request), 200)

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
        return _job_response(self._operate(Operation.REDRIVE, job_id, request, forget_steps=forget_steps), 202)

    @requires_role(Role.EDIT)
    def edit(self, job_id: str, body: EditRequest, request: Request) -> Response:
        """Redrive a dead letter with other arguments: as a new job, with everything else of the dead letter.

        The dead letter is deleted then. An equal job that exists already answers, as for any submission.
        """
        permissions = permissions_of(request)
        job = self.job_routes.get(job_id, permissions)
        if permissions.may is None and not getattr(request.state, "key_name", ""):
            raise Problem("forbidden", "an edit takes an API key with the role edit, or a `may` that permits it")
        permissions.check("edit", job)
        given = {name: value for name, value in body if value is not None}
        admission = edit(self.app, self.job_routes.ledger, job.id, check=check_arguments, **given)
        status = 202 if admission.outcome.makes_job else 200
        return Response(submit_response(admission.outcome, admission.job), status, media_type="application/json")

    @requires_role(Role.OPERATE)
    def delete(self, job_id: str, request: Request) -> Response:
        """Delete a job that has ended, unless it still answers duplicates. Its id is answered with 410 for a while."""
        return _job_response(self._operate(Operation.DELETE, job_id, request), 204)

    @requires_role(Role.OPERATE)
    def redrive_many(self, body: RedriveRequest, request: Request) -> BulkView:
        """Redrive many dead letters: those with some ids, of a task or with an error, or all.

        If one cannot be redriven, the others still are; `refused` has the reason.
        """
        result = self._operate_many(
            Operation.REDRIVE, body.selection, request, dry_run=body.dry_run, forget_steps=body.forget_steps
        )
        return BulkView(dry_run=body.dry_run, done=result.done, refused=result.refused)

    @requires_role(Role.OPERATE)
    def operate_many(self, body: BulkRequest, request: Request) -> BulkPage:
        """Cancel, make due, redrive or delete many jobs: those with some ids, or those that match a filter.

        If one is refused, the others are not; `refused` has the reason. The jobs of a filter are processed newest
        first, up to `limit` and for about ten seconds: repeat the request with `next` as the `cursor` until it is null.
        Each job is processed once then, and none that was submitted after the first request.
        """
        deadline = time.monotonic() + BULK_SECONDS
        result = self._operate_many(
            body.operation, body.selection, request, dry_run=body.dry_run, forget_steps=body.forget_steps,
            is_over=lambda: time.monotonic() >= deadline,
        )  # fmt: skip
        cursor = None if result.next is None else Cursor(*result.next).encode()
        return BulkPage(dry_run=body.dry_run, done=result.done, refused=result.refused, next=cursor)

    def _operate(
        self, operation: Operation, job_id: str, request: Request, *, forget_steps: bool = False
    ) -> Job | None:
        """Carry out an operation on a job that the caller sees. Raises `Problem` if it may not do this to the job."""
        permissions = permissions_of(request)
        job = self.job_routes.get(job_id, permissions)
        permissions.check(operation.permission, job)
        ledger, origin = self.job_routes.ledger, _origin(request)
        return operate(self.app, ledger, operation, job, origin=origin, forget_steps=forget_steps)

    def _operate_many(
        self, operation: Operation, selection: Selection, request: Request, *, dry_run: bool, forget_steps: bool,
        is_over: Callable[[], bool] | None = None,
    ) -> BulkResult:  # fmt: skip
        ledger, permissions, origin = self.job_routes.ledger, permissions_of(request), _origin(request)

        def check(job: Job) -> None:
            if not permissions.allows(operation.permission, job):
                msg = f"{permissions.caller.name!r} is not permitted: {operation.permission} job {job.id}"
                raise OneJobError(msg)
            operation.check(job)

        def act(job: Job) -> Any:
            return operate(self.app, ledger, operation, job, origin=origin, forget_steps=forget_steps)

        reader = permissions.reader(ledger)
        return bulk_apply(reader, selection, act, check=check, dry_run=dry_run, is_over=is_over)


def _origin(request: Request) -> str:
    caller = request.state.caller.name
    return f"over HTTP by {caller}" if caller else "over HTTP"


def _job_response(job: Job | None, status: int) -> Response:
    if job is None:
        return Response(status_code=status)
    return Response(job_view(job).model_dump_json(), status, media_type="application/json")
