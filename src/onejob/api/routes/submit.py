"""The endpoints `POST /jobs`, in batches, and `POST /duplicates/check`, which stores nothing.

Concurrent requests are submitted in batches, and each gets its own response. A large body is parsed and hashed before
its batch, in a slot of its caller, so that no batch waits for it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from celery import Celery
from pydantic import WrapValidator
from starlette.responses import Response

from onejob.api.auth import Handler
from onejob.api.caller_limits import BodyLimits, is_large
from onejob.api.callers import Permissions, permissions_of
from onejob.api.checked_request import CheckedRequest
from onejob.api.problems import Problem
from onejob.api.request_models import CALL_OPTIONS, KEY_PATTERN, MAX_DELAY, CallRequest, RequestReader, SubmitRequest
from onejob.api.response_models import ValidatedSubmission, submit_response
from onejob.api.root_path import path_of
from onejob.celery.app_state import app_state_of
from onejob.celery.submission.async_submissions import admit_batch
from onejob.celery.submission.call import Call, Prepared, prepare, seconds_until, unique_on_reported
from onejob.celery.submission.submit import check_accepted
from onejob.celery.task import Task
from onejob.client.jobs import check_duplicate
from onejob.concurrency.batching import Batcher, PerEventLoop
from onejob.errors import ConfigurationError
from onejob.jobs.model import Admission, values_of
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.submitter import Submitter, submitting_as
from onejob.observability import tracing
from onejob.observability.tracing import SubmissionSpan

SOURCE = "http"
RETRY_AFTER = {"retry-after": "1"}
QUOTED = re.compile(r'^"(.*)"$', re.DOTALL)
PATH_CHARACTERS = "/:@!$&'()*+,;=~"
"""The characters that need no escape in the path of a URL (RFC 3986, section 3.3)."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request to submit a job."""

    body: SubmitRequest
    key: str | None
    permissions: Permissions
    submitter: Submitter
    jobs_path: str
    """The path of the collection of jobs, under which the router is mounted."""
    span: SubmissionSpan = tracing.NO_SPAN
    prepared: Prepared | Response | None = None
    """The value of `_prepare`, if the call was prepared before its batch."""


def submit_endpoint(
    app: Celery, tasks: Mapping[str, Task], limits: BodyLimits
) -> tuple[Callable[..., Any], Handler]:  # fmt: skip
    """Return the endpoint that submits jobs of these tasks, and the equivalent handler without FastAPI.

    The jobs of concurrent requests are submitted in a few round trips.
    """
    reader = RequestReader(tasks)
    batchers: PerEventLoop[Batcher[PendingRequest, Response]] = PerEventLoop(
        lambda: Batcher(lambda batch: admit_batch(app, batch, partial(_prepare, tasks), _respond))
    )

    def read(request: CheckedRequest) -> PendingRequest:
        body, permissions = reader.parse(request.checked_body or b""), permissions_of(request)
        permissions.check("submit", body.task)
        jobs_path = quote(path_of(request.scope), safe=PATH_CHARACTERS).rstrip("/")
        key, submitter = _idempotency_key(body, request), permissions.caller.submitter
        return PendingRequest(body, key, permissions, submitter, jobs_path)

    async def admit(request: CheckedRequest, pending: PendingRequest) -> Response:
        if is_large(request):
            prepared = await limits.run(request, partial(_prepare, tasks, pending))
            pending = replace(pending, prepared=prepared)
        return await batchers.current().process(pending)

    async def handle(request: CheckedRequest) -> Response:
        pending = await limits.run(request, partial(read, request))
        if pending.body.validate_only:
            limits.charge_check(request)
        if tracing.tracer is tracing.NO_TRACER or pending.body.validate_only:
            return await admit(request, pending)
        carrier = {name: text for name in tracing.TRACE_CONTEXT for text in request.texts(name.encode())[:1]}
        with tracing.tracer.submit(pending.body.task, SOURCE, carrier=carrier) as span:
            return await admit(request, replace(pending, span=span))

    async def submit(request: CheckedRequest, body: Any) -> Response:  # noqa: ARG001 - for OpenAPI
        """Submit a job. Equal submissions get the same job; `outcome` says how this submission was answered."""
        return await handle(request)

    return _documented(submit, reader), handle


def _documented(endpoint: Callable[..., Any], reader: RequestReader) -> Callable[..., Any]:
    """Give an endpoint the type of its body, for OpenAPI only: the type is known at run time; `reader` is stricter."""
    endpoint.__annotations__["body"] = Annotated[reader.type, WrapValidator(lambda value, _: value)]
    return endpoint


def _prepare(tasks: Mapping[str, Task], pending: PendingRequest) -> Prepared | Response:
    """Return the call of a request, or the reply if there is nothing to submit. Raises `Problem`."""
    if pending.prepared is not None:
        return pending.prepared
    body, task = pending.body, tasks[pending.body.task]
    if body.countdown is not None and body.eta is not None:
        raise Problem("invalid-request", "give a countdown or an eta, not both")
    if body.eta is not None and seconds_until(body.eta, "eta") > MAX_DELAY:
        raise Problem("invalid-request", f"the eta is more than {MAX_DELAY:.0f} s from now")
    options = {name: value for name, value in body if name in CALL_OPTIONS and value is not None}
    call = Call(
        task, kwargs=body.kwargs, options=options, source=SOURCE, key=pending.key,
        on_duplicate=body.on_duplicate, webhook_url=body.webhook_url, check_answer=pending.permissions.check_answer,
    )  # fmt: skip
    with submitting_as(pending.submitter), pending.span.activate(), _webhooks_reported(body), unique_on_reported():
        prepared = prepare(app_state_of(task.app), call)
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
    headers = {"location": f"{pending.jobs_path}/{quote(admission.job.id, safe='')}"}
    content, is_new = submit_response(admission.outcome, admission.job), admission.outcome.makes_job
    return _json(content, 202, headers | RETRY_AFTER) if is_new else _json(content, 200, headers)


@contextmanager
def _webhooks_reported(body: SubmitRequest) -> Iterator[None]:
    """Raise `Problem` for webhooks that are not configured."""
    try:
        yield
    except ConfigurationError:
        if body.webhook_url is None:
            raise
        detail = "this server sends no webhooks: an operator must install onejob[webhooks] and configure secrets"
        raise Problem("invalid-request", detail) from None


def _idempotency_key(body: SubmitRequest, request: CheckedRequest) -> str | None:
    """Return the idempotency key of the body or the header. Raises `Problem` if they differ."""
    headers = request.texts(b"idempotency-key")
    if not headers:
        return body.idempotency_key
    # A header may be quoted: it is a structured field in draft-ietf-httpapi-idempotency-key-header.
    keys = {key for key in (body.idempotency_key, *(QUOTED.sub(r"\1", each) for each in headers)) if key is not None}
    if not all(re.fullmatch(KEY_PATTERN, key) for key in keys):
        raise Problem("invalid-request", "the idempotency key has other characters than printable ASCII")
    if len(keys) > 1 or len(headers) > 1:
        raise Problem("invalid-request", "the request has more than one idempotency key")
    return next(iter(keys), None)


def _json(content: str | bytes, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, "application/json")


HIDDEN_ANSWER = "A job that the caller is not permitted to read would answer this call."


def check_endpoint(app: Celery, tasks: Mapping[str, Task], limits: BodyLimits) -> Callable[..., Any]:
    """Return the endpoint that checks calls of these tasks."""
    reader = RequestReader(tasks, CallRequest)

    async def check(request: CheckedRequest, body: Any) -> dict[str, Any]:  # noqa: ARG001 - for OpenAPI
        """Return how a submission of `task`, `kwargs` and `on_duplicate` would be answered now. Nothing is stored.

        `existing` is null for a job that the caller does not see.
        """
        limits.charge_check(request)
        call: CallRequest = await limits.run(request, partial(reader.parse, request.checked_body or b""))
        permissions = permissions_of(request)
        permissions.check("submit", call.task)
        return await limits.run(request, partial(_check_duplicate, app, call, permissions), is_short=False)

    return _documented(check, reader)


def _check_duplicate(app: Celery, body: CallRequest, permissions: Permissions) -> dict[str, Any]:
    found = check_duplicate(
        app, body.task, (), body.kwargs, submitter=permissions.caller.submitter, on_duplicate=body.on_duplicate
    )
    if found.existing is None:
        return values_of(found)
    if not permissions.visibility.includes(found.existing):
        return values_of(found) | {"existing": None, "reason": HIDDEN_ANSWER}
    return values_of(found) | {"existing": job_to_dict(found.existing)}
