"""`POST /jobs`: from a request to a job, and what the submission came to."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Header, Request
from starlette.responses import Response

from onejob.api.asking import asked_type
from onejob.api.guard import needs
from onejob.api.keys import Role
from onejob.api.problems import Problem
from onejob.api.views import Answer, Checked, view_of
from onejob.caller import submitter
from onejob.celery.submitting import admit, check_accepted
from onejob.errors import OneJobError
from onejob.job import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import BaseModel

    from onejob.api.asking import Asked
    from onejob.celery.task import Task
    from onejob.job import Submission

DOOR = "http"
NEW = frozenset({Outcome.ADMITTED, Outcome.QUEUED_NEXT})
SOON = {"retry-after": "1"}
KeyHeader = Annotated[str | None, Header(alias="Idempotency-Key", description="The same as `idempotency_key`.")]


def endpoint(tasks: Mapping[str, Task]) -> Callable[..., Response]:
    """Return the endpoint by which these tasks are asked for."""

    @needs(Role.SUBMIT)
    def submit(request: Request, asked: Any, key: KeyHeader = None) -> Response:
        """Ask for a job. Equal submissions get one job; `outcome` says what this one came to."""
        return _submit(tasks[asked.task], asked, request, key)

    submit.__annotations__["asked"] = asked_type(tasks)  # known at run time only
    return submit


def _submit(task: Task, asked: Asked, request: Request, header: str | None) -> Response:
    caller = request.state.caller
    with submitter(caller) if caller else nullcontext():
        key = _one_key(asked, request, header)
        new = submission_of(task, asked, key)
    if asked.validate_only:
        return _json(Checked(task=new.task, identity=new.identity, fingerprint=new.fingerprint), 200)
    admission = admit(task, new)
    check_accepted(new, key, admission)
    place = {"location": f"{request.url.path.rstrip('/')}/{admission.job.id}"}
    answer = Answer(outcome=admission.outcome, job=view_of(admission.job))
    return _json(answer, 202, place | SOON) if admission.outcome in NEW else _json(answer, 200, place)


def submission_of(task: Task, asked: Asked, key: str | None) -> Submission:
    """Return the submission that a request comes to. Raises `Problem`, and what `Task.submission` raises."""
    if asked.countdown is not None and asked.eta is not None:
        raise Problem("invalid-request", "a job is due after a countdown or at an eta, not both")
    options = {name: getattr(asked, name) for name in ("countdown", "eta", "priority")}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return task.submission(asked.kwargs, door=DOOR, idempotency_key=key, on_duplicate=asked.on_duplicate, **given)
    except OneJobError:
        raise
    except Exception as error:  # the task's own unique_on, on values that its author did not think of
        detail = f"no identity can be made of these arguments: {type(error).__name__}"
        raise Problem("invalid-arguments", detail) from error


def _one_key(asked: Asked, request: Request, header: str | None) -> str | None:
    """Return the idempotency key, from wherever it is. Raises `Problem` when there are two."""
    if header is not None and len(header) > 1 and header[0] == header[-1] == '"':
        header = header[1:-1]  # the text of a structured field, as the IETF's draft has it
    given = {key for key in (asked.idempotency_key, header) if key is not None}
    if len(given) > 1 or len(request.headers.getlist("idempotency-key")) > 1:
        raise Problem("invalid-request", "the request has two idempotency keys, and they differ")
    return next(iter(given), None)


def _json(content: BaseModel, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(content.model_dump_json(), status, headers, "application/json")
