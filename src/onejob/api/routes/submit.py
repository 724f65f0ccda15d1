"""`POST /jobs`, in batches, and `POST /duplicates/check`, which stores nothing.

Concurrent requests are submitted in batches, and each gets its own response.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import quote

from pydantic import WrapValidator
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import direct_handler, requires_role
from onejob.api.callers import permissions_of
from onejob.api.checked_request import CheckedRequest  # noqa: TC001 - FastAPI evaluates the hints
from onejob.api.problems import Problem
from onejob.api.request_models import MAX_DELAY, CallRequest, RequestReader
from onejob.api.response_models import DuplicateCheckView, ValidatedSubmission, job_view, submit_response
from onejob.celery.async_submissions import admit_batch
from onejob.celery.batching import Batcher, Pending, PerEventLoop
from onejob.celery.call import Call, Caller, Prepared, check_webhook_url, prepare, seconds_until
from onejob.celery.operations import check_duplicate
from onejob.celery.routing import is_unpublishable
from onejob.celery.submit import check_accepted
from onejob.errors import ConfigurationError, OneJobError
from onejob.jobs.submitter import submitting_as
from onejob.observability import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery import Celery

    from onejob.api.callers import Permissions
    from onejob.api.request_models import SubmitRequest
    from onejob.celery.task import Task
    from onejob.jobs.model import Admission
    from onejob.jobs.submitter import Submitter
    from onejob.observability.tracing import SubmissionSpan

SOURCE = "http"
SubmitResult: TypeAlias = "Admission | Exception"
"""The result of a submission."""
Reply: TypeAlias = "Response | Pending[Response] | Exception"
"""The reply to a request, which the batcher passes on."""
RETRY_AFTER = {"retry-after": "1"}


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """One request to submit a job."""

    body: SubmitRequest
    key: str | None
    permissions: Permissions
    submitter: Submitter
    jobs_path: str
    """The path of the collection of jobs, under which the router is mounted."""
    span: SubmissionSpan = tracing.NO_SPAN


def submit_endpoint(app: Celery, tasks: Mapping[str, Task]) -> Callable[..., Any]:
    """Return the endpoint that submits jobs of these tasks."""
    reader, handler = RequestReader(tasks), SubmitHandler(app, tasks)
    batchers = PerEventLoop(lambda: Batcher(handler.handle_batch))

    async def handle(request: CheckedRequest) -> Response:
        body, permissions = await reader.read(request), permissions_of(request)
        permissions.check("submit", body.task)
        submitter, jobs_path = permissions.caller.submitter, _url_path(request.scope["path"]).rstrip("/")
        pending = PendingRequest(body, _idempotency_key(body, request), permissions, submitter, jobs_path)
        if tracing.tracer is tracing.NO_TRACER or body.validate_only:
            return await batchers.current().process(pending)
        with tracing.tracer.submit(body.task, SOURCE, carrier=_trace_context(request)) as span:
            return await batchers.current().process(replace(pending, span=span))

    @requires_role(Role.SUBMIT)
    @direct_handler(handle)
    async def submit(request: CheckedRequest, body: Any) -> Response:  # noqa: ARG001 - for OpenAPI
        """Submit a job. Equal submissions get the same job; `outcome` says how this one was answered."""
        return await handle(request)

    # For OpenAPI only: the type is known at run time, and `handle` validates the body more strictly.
    submit.__annotations__["body"] = Annotated[reader.type, WrapValidator(lambda value, _: value)]
    return submit


@dataclass(frozen=True, slots=True)
class SubmitHandler:
    """Submits batches of requests to the ledger of one app."""

    app: Celery
    tasks: Mapping[str, Task]

    def handle_batch(self, batch: Sequence[PendingRequest]) -> list[Reply]:
        """Return the replies to a batch of requests, in a few round trips."""
        return admit_batch(self.app, batch, self._prepare, _respond)

    def _prepare(self, pending: PendingRequest) -> Prepared | Response:
        """Return the call of a request, or the reply if there is nothing to submit."""
        task, body = self.tasks[pending.body.task], pending.body
        with submitting_as(pending.submitter), pending.span.activate():
            check_webhook(task, body.webhook_url)
            prepared = prepare_call(task, body, pending.key, pending.permissions.check_answer)
        if not body.validate_only:
            return prepared
        identity, fingerprint = prepared.submission.identity, prepared.submission.fingerprint
        content = ValidatedSubmission(task=body.task, identity=identity, fingerprint=fingerprint)
        return _json(content.model_dump_json(), 200)


def _respond(pending: PendingRequest, prepared: Prepared, admission: Admission | Exception) -> Response:
    if isinstance(admission, Exception):
        raise admission
    pending.span.record([admission])
    check_accepted(prepared.call, admission)
    return _submit_response(admission, f"{pending.jobs_path}/{quote(admission.job.id, safe='')}")


def _submit_response(admission: Admission, location: str) -> Response:
    content, headers = submit_response(admission.outcome, admission.job), {"location": location}
    return _json(content, 202, headers | RETRY_AFTER) if admission.outcome.makes_job else _json(content, 200, headers)


def prepare_call(
    task: Task, body: SubmitRequest, key: str | None, check_answer: Callable[[Admission], object]
) -> Prepared:
    """Return the call of a request body with its submission. Raises `Problem`, and as `prepare`."""
    if body.countdown is not None and body.eta is not None:
        raise Problem("invalid-request", "give a countdown or an eta, not both")
    if body.eta is not None and (seconds_until(body.eta) or 0.0) > MAX_DELAY:
        raise Problem("invalid-request", f"the eta is more than {MAX_DELAY:.0f} s from now")
    options = {"countdown": body.countdown, "eta": body.eta, "priority": body.priority}
    call = Call(
        task, Caller.of(task.app), kwargs=body.kwargs,
        options={name: value for name, value in options.items() if value is not None}, source=SOURCE, key=key,
        on_duplicate=body.on_duplicate, webhook_url=body.webhook_url, check_answer=check_answer,
    )  # fmt: skip
    with unique_on_errors():
        return prepare(call)


@contextmanager
def unique_on_errors() -> Iterator[None]:
    """Raise `Problem` for what a task's own `unique_on` function raises, which may be anything."""
    try:
        yield
    except OneJobError:
        raise
    except Exception as error:
        if is_unpublishable(error):
            raise
        detail = f"unique_on failed on these arguments: {type(error).__name__}"
        raise Problem("invalid-arguments", detail) from error


def check_webhook(task: Task, url: str | None) -> None:
    """Raise `Problem` if webhooks are not configured, and `InvalidArgumentsError` for an invalid URL."""
    try:
        check_webhook_url(task, url)
    except ConfigurationError:
        detail = "this server sends no webhooks: an operator must install onejob[webhooks] and configure secrets"
        raise Problem("invalid-request", detail) from None


def _idempotency_key(body: SubmitRequest, request: CheckedRequest) -> str | None:
    """Return the idempotency key of the body or the header. Raises `Problem` if they differ."""
    headers = request.texts(b"idempotency-key")
    if not headers:
        return body.idempotency_key
    keys = {key for key in (body.idempotency_key, *map(_unquote, headers)) if key is not None}
    if len(keys) > 1 or len(headers) > 1:
        raise Problem("invalid-request", "the request has more than one idempotency key")
    return next(iter(keys), None)


def _trace_context(request: CheckedRequest) -> dict[str, str]:
    """Return the trace context in the headers of a request."""
    return {name: text for name in tracing.TRACE_CONTEXT for text in request.texts(name.encode())[:1]}


@lru_cache(maxsize=256)
def _url_path(path: str) -> str:
    """Return the decoded path of a request as it stands in a URL."""
    return URL(scope={"path": path, "headers": [], "server": ("localhost", 80)}).path


def _unquote(header: str) -> str:
    """Return the key in a header, quoted (a structured field, draft-ietf-httpapi-idempotency-key-header) or not."""
    quoted = len(header) > 1 and header[0] == header[-1] == '"'
    return header[1:-1] if quoted else header


def _json(content: str | bytes, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, "application/json")


HIDDEN_ANSWER = "A job that the caller is not permitted to read would answer this call."


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
        return await run_in_threadpool(_check_duplicate, app, call, permissions)

    # For OpenAPI only, as for a submission.
    check.__annotations__["body"] = Annotated[reader.type, WrapValidator(lambda value, _: value)]
    return check


def _check_duplicate(app: Celery, body: CallRequest, permissions: Permissions) -> DuplicateCheckView:
    with unique_on_errors():
        found = check_duplicate(
            app, body.task, (), body.kwargs, submitter=permissions.caller.submitter, on_duplicate=body.on_duplicate
        )
    is_visible = found.existing is not None and permissions.visibility.includes(found.existing)
    return DuplicateCheckView(
        task=found.task, identity=found.identity, hashed_text=found.hashed_text, fingerprint=found.fingerprint,
        outcome=found.outcome, reason=found.reason if found.existing is None or is_visible else HIDDEN_ANSWER,
        existing=job_view(found.existing) if found.existing is not None and is_visible else None,
    )  # fmt: skip
