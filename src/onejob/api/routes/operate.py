"""Operations on jobs: cancel, run now, redrive, delete; of one job, or of many."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Self

from celery import Celery
from fastapi import Body, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator
from starlette.responses import Response

from onejob.api.callers import permissions_of
from onejob.api.checked_request import PARAMETER_LIMIT, VALUE_LIMIT
from onejob.api.fair_threads import BULK
from onejob.api.problems import Problem
from onejob.api.request_models import WHOLE, check_arguments
from onejob.api.response_models import (
    BULK_LIMIT,
    BulkPage,
    BulkView,
    CursorText,
    decode_cursor,
    job_json,
    submit_response,
)
from onejob.api.routes.jobs import ID_LIMIT, JobRoutes, Text, with_filters
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.errors import OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.ledger.bulk import Selection
from onejob.ledger.cursor import Cursor
from onejob.ledger.dead_letters import PATTERN_LIMIT, GroupKey, in_group, select_dead_letters
from onejob.ledger.job_filters import FILTERS, PARTS_OF_TEXTS, has_condition, query_of
from onejob.ledger.ledger import Ledger

BULK_SECONDS = 10.0
"""Seconds after which a bulk operation on the jobs of a filter returns, with the cursor of its next portion."""


class StrictBody(BaseModel):
    """A request body that takes no other fields, and coerces no values."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EmptyBody(StrictBody):
    """A request body without fields: `{}`."""


EMPTY = EmptyBody()


def empty_body(body: Annotated[EmptyBody, Body()] = EMPTY) -> None:
    """Accept only `{}` as the body of a request: a dependency of the endpoints that need no body."""


JobId = Annotated[str, StringConstraints(min_length=1, max_length=ID_LIMIT, pattern=r"^[^\x00]*$")]
JobIds = Annotated[list[JobId], Field(max_length=BULK_LIMIT)]
Limit = Annotated[int, Field(ge=1, le=BULK_LIMIT), WHOLE]


def _has(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object with a property `name` that fits `schema`."""
    return {"required": [name], "properties": {name: schema}}


GIVEN = {"type": "string", "minLength": 1}
FILTER_NAMES = [each.name for each in FILTERS if each.kind is not State]
STATE_SCHEMA = {"type": "string", "enum": [*State]}
AS_LIST = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Takes a single state as a list of one."""
STATES_SCHEMA = {
    "anyOf": [STATE_SCHEMA, {"type": "array", "items": STATE_SCHEMA, "maxItems": PARAMETER_LIMIT}],
    "description": "One or more.",
}
IDS = _has("job_ids", {"minItems": 1})


@with_filters("state")
class RedriveRequest(StrictBody):
    """The dead letters to redrive: selected by their ids, or by filters, newest first."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema.update(
            oneOf=[IDS, {"anyOf": [*(_has(each, GIVEN) for each in FILTER_NAMES), _has("all", {"const": True})]}]
        ),
    )

    job_ids: JobIds = []
    all: bool = Field(default=False, description="All dead letters, up to the limit.")
    limit: Limit = 100
    dry_run: bool = Field(default=False, description="Only list the dead letters that would be redriven.")
    forget_steps: bool = Field(default=False, description="Run completed steps again.")

    @property
    def selection(self) -> Selection:
        """The dead letters to redrive. Raises `ValueError` unless there are either ids or a filter."""
        filters = {name: value for name, value in self if name in FILTER_NAMES}
        return select_dead_letters(job_ids=self.job_ids, everything=self.all, limit=self.limit, **filters)

    @model_validator(mode="after")
    def check_selection(self) -> Self:
        """Raise `ValueError` unless there are either ids or a filter."""
        _ = self.selection
        return self


class EditRequest(StrictBody):
    """The new arguments; an argument that is left out keeps its value."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [_has("args", {"type": "array", "maxItems": VALUE_LIMIT}), _has("kwargs", {"type": "object"})]
        },
    )

    args: Annotated[list[Any], Field(max_length=VALUE_LIMIT)] | None = Field(
        None, description="The positional arguments."
    )
    kwargs: dict[str, Any] | None = Field(None, description="The keyword arguments.")

    @model_validator(mode="after")
    def check_given(self) -> Self:
        """Raise `ValueError` without any arguments."""
        if self.args is None and self.kwargs is None:
            raise ValueError("give args, kwargs or both")
        return self


class BulkGroup(StrictBody):
    """The `task`, `error_type` and `pattern` of a group of dead letters."""

    task: Text
    error_type: Text
    pattern: Annotated[str, StringConstraints(max_length=PATTERN_LIMIT, pattern=r"^[^\x00]*$")]


@with_filters()
class BulkFilter(StrictBody):
    """The filters of a bulk operation, combined with AND; without `state`, all states that the operation applies to."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema.update(
            anyOf=[
                _has(name, {"not": {"enum": [None, [], *([""] if name in PARTS_OF_TEXTS else [])]}})
                for name in schema["properties"]
            ]
        ),
    )

    state: Annotated[
        list[Annotated[State, Field(strict=False)]], Field(max_length=PARAMETER_LIMIT), AS_LIST,
        WithJsonSchema(STATES_SCHEMA),
    ] = Field([])  # fmt: skip
    group: BulkGroup | None = Field(None, description="Only the dead letters of this group.")


class BulkRequest(StrictBody):
    """An operation on the jobs with some ids, or on the jobs that match a filter, newest first."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                IDS | {"not": {"anyOf": [_has("filter", {"type": "object"}), _has("cursor", {"type": "string"})]}},
                _has("filter", {"type": "object"}) | {"not": IDS},
            ]
        },
    )

    operation: Annotated[Operation, Field(strict=False)]
    job_ids: JobIds = []
    filter: BulkFilter | None = Field(None, description="At least one condition that is not empty.")
    limit: Limit = Field(100, description="How many jobs of the filter are processed at most.")
    cursor: CursorText | None = Field(None, description="`next` of the previous response to the same filter.")
    dry_run: bool = Field(default=False, description="Only list the jobs that the operation would be applied to.")
    forget_steps: bool = Field(default=False, description="Redriven jobs run completed steps again.")

    @property
    def selection(self) -> Selection:
        """The selected jobs. Raises `ValueError` unless there are either ids or a filter, `Problem` for the cursor."""
        if self.filter is None:
            return Selection(job_ids=self.job_ids)
        query = query_of(
            dict(self.filter) | {"state": self.filter.state or self.operation.states}, limit=self.limit,
            **decode_cursor(self.cursor),
        )  # fmt: skip
        if self.filter.group is None:
            return Selection(query=query)
        group = GroupKey(**dict(self.filter.group))
        return Selection(query=replace(query, tasks=frozenset({group.task})), matches=lambda job: in_group(job, group))

    @model_validator(mode="after")
    def check_selection(self) -> Self:
        """Raise `ValueError` unless there are either ids or a filter with a condition, and no cursor with ids."""
        if bool(self.job_ids) is (self.filter is not None):
            raise ValueError("give job ids or a filter, not both")
        if self.filter is not None and not has_condition(self.filter):
            raise ValueError("the filter has no condition")
        if self.job_ids and self.cursor is not None:
            raise ValueError("a cursor belongs to a filter, not to job ids")
        return self


@dataclass(frozen=True, slots=True)
class OperateRoutes:
    """The endpoints that change jobs, for one app."""

    app: Celery
    job_routes: JobRoutes

    def cancel(self, job_id: str, request: Request, *, force: bool = False) -> Response:
        """Cancel a job: at once if it is not running (200), otherwise by a request to the run (202).

        `force`: the worker is notified at once, and terminates the run.
        """
        return self._operate(Operation.FORCE_CANCEL if force else Operation.CANCEL, job_id, request, 202)

    def run_now(self, job_id: str, request: Request) -> Response:
        """Make a delayed or retrying job due at once. A job that is due already is unchanged."""
        return self._operate(Operation.RUN_NOW, job_id, request, 200)

    def redrive(self, job_id: str, request: Request, *, forget_steps: bool = False) -> Response:
        """Redrive a dead letter, which keeps its completed steps."""
        return self._operate(Operation.REDRIVE, job_id, request, 202, forget_steps=forget_steps)

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
        admission = operator_of(request, self.app, self.job_routes.ledger).edit(job.id, check=check_arguments, **given)
        status = 202 if admission.outcome.makes_job else 200
        return Response(submit_response(admission.outcome, admission.job), status, media_type="application/json")

    def delete(self, job_id: str, request: Request, *, force: bool = False) -> Response:
        """Delete a job that has ended, unless it still answers duplicates. Its id is answered with 410 for a while.

        `force`: delete the job even if an idempotency key names it, which is free then, or if its end is still to be
        passed on.
        """
        return self._operate(Operation.FORCE_DELETE if force else Operation.DELETE, job_id, request, 204)

    async def redrive_many(self, body: RedriveRequest, request: Request) -> BulkView:
        """Redrive many dead letters: by their ids, by a task or an error, or all.

        If a dead letter cannot be redriven, the others still are; `refused` has the reason.
        """
        redrive = partial(
            operator_of(request, self.app, self.job_routes.ledger).operate_many,
            Operation.REDRIVE, body.selection, forget_steps=body.forget_steps, dry_run=body.dry_run,
        )  # fmt: skip
        result = await BULK.current().run(request, BULK_SECONDS, lambda _: redrive())
        return BulkView(dry_run=body.dry_run, done=result.done, refused=result.refused)

    async def operate_many(self, body: BulkRequest, request: Request) -> BulkPage:
        """Cancel, make due, redrive or delete many jobs: by their ids, or by a filter.

        If the operation is refused for a job, the others are still processed; `refused` has the reason. The jobs of a
        filter are processed newest first, up to `limit` and for about ten seconds: repeat the request with `next` as
        the `cursor` until it is null. Each job is then processed once; jobs that were submitted after the first request
        are not.
        """
        operate = partial(
            operator_of(request, self.app, self.job_routes.ledger).operate_many,
            body.operation, body.selection, forget_steps=body.forget_steps, dry_run=body.dry_run,
        )  # fmt: skip
        result = await BULK.current().run(request, BULK_SECONDS, lambda is_over: operate(is_over=is_over))
        cursor = None if result.next is None else Cursor(*result.next).encode()
        return BulkPage(dry_run=body.dry_run, done=result.done, refused=result.refused, next=cursor)

    def _operate(
        self, operation: Operation, job_id: str, request: Request, status: int, *, forget_steps: bool = False
    ) -> Response:
        """Carry out an operation on a job that the caller sees. Raises `Problem` if the caller has no permission.

        `status`: the status of the response; it is 200 if the job is canceled.
        """
        permissions = permissions_of(request)
        job = self.job_routes.get(job_id, permissions)
        permissions.check(operation.permission, job)
        after = operator_of(request, self.app, self.job_routes.ledger).operate(
            operation, job, forget_steps=forget_steps
        )
        if after is None:
            return Response(status_code=status)
        return Response(
            job_json(after), 200 if after.state is State.CANCELED else status, media_type="application/json"
        )


def operator_of(request: Request, app: Celery, ledger: Ledger) -> Operator:
    """Return the operator of jobs for the caller of a request."""
    permissions = permissions_of(request)
    name = permissions.caller.name

    def check(action: str, job: JobRow) -> None:
        if not permissions.allows(action, job):
            raise OneJobError(f"{name!r} is not permitted: {action} job {job.id}")

    return Operator(
        app=app, ledger=ledger, origin=f"over HTTP by {name}" if name else "over HTTP",
        reader=permissions.reader(ledger), check=check, check_answer=permissions.check_answer,
    )  # fmt: skip
