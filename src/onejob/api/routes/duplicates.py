"""`POST /duplicates/check`: whether a call would be a duplicate, and which job would answer it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import WrapValidator
from starlette.concurrency import run_in_threadpool

from onejob.api.api_keys import Role
from onejob.api.auth import requires_role
from onejob.api.callers import permissions_of
from onejob.api.checked_request import CheckedRequest  # noqa: TC001 - FastAPI evaluates the hints
from onejob.api.request_models import CallRequest, RequestReader
from onejob.api.response_models import DuplicateCheckView, job_view
from onejob.api.routes.submit import unique_on_errors
from onejob.celery.duplicate_check import check_duplicate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from onejob.api.callers import Permissions
    from onejob.celery.task import Task

HIDDEN = "A job that the caller is not permitted to read would answer this call."


def check_endpoint(app: Celery, tasks: Mapping[str, Task]) -> Callable[..., Any]:
    """Return the endpoint that checks calls of these tasks."""
    reader = RequestReader(tasks, CallRequest)

    @requires_role(Role.READ)
    async def check(request: CheckedRequest, body: Any) -> DuplicateCheckView:  # noqa: ARG001 - for OpenAPI
        """Return how a submission of `task`, `kwargs` and `on_duplicate` would be answered now. Nothing is stored.

        `existing` is null for a job that the caller does not see.
        """
        call, permissions = await reader.read(request), permissions_of(request)
        permissions.check("submit", call.task)
        return await run_in_threadpool(_check, app, call, permissions)

    # For OpenAPI only, as for a submission.
    check.__annotations__["body"] = Annotated[reader.type, WrapValidator(lambda value, _: value)]
    return check


def _check(app: Celery, body: CallRequest, permissions: Permissions) -> DuplicateCheckView:
    with unique_on_errors():
        found = check_duplicate(
            app, body.task, (), body.kwargs, submitter=permissions.caller.submitter, on_duplicate=body.on_duplicate
        )
    is_visible = found.existing is not None and permissions.visibility.includes(found.existing)
    return DuplicateCheckView(
        task=found.task, identity=found.identity, hashed_text=found.hashed_text, fingerprint=found.fingerprint,
        outcome=found.outcome, reason=found.reason if found.existing is None or is_visible else HIDDEN,
        existing=job_view(found.existing) if found.existing is not None and is_visible else None,
    )  # fmt: skip
