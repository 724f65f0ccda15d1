"""The router for a FastAPI app, and the standalone app."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import iscoroutinefunction
from threading import Event
from types import GenericAlias
from typing import Annotated, Any, TypeAlias

from celery import Celery
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onejob.api import response_models as models
from onejob.api.api_keys import KeyFile, Role
from onejob.api.audit import RequestAudit
from onejob.api.auth import DirectRoutes, Guard, check_local, guarded, route_for
from onejob.api.caller_limits import CHECKS_PER_MINUTE, BodyLimits
from onejob.api.callers import May, caller_dependency, check_operator
from onejob.api.job_reads import WAITS_PER_CALLER
from onejob.api.problems import MEDIA_TYPE, SCHEMA, Headers, Problem, add_security_headers, handle_exception
from onejob.api.request_models import exposed_tasks
from onejob.api.routes.blocks import BlockRoutes
from onejob.api.routes.jobs import JobRoutes
from onejob.api.routes.ledger import LedgerRoutes
from onejob.api.routes.limits import LimitRoutes
from onejob.api.routes.operate import OperateRoutes, empty_body
from onejob.api.routes.submit import check_endpoint, submit_endpoint
from onejob.celery.app_state import app_state_of
from onejob.celery.task import Task
from onejob.errors import ConfigurationError
from onejob.jobs.blocks import BLOCK_LIMIT
from onejob.jobs.public_view import Job
from onejob.jobs.submitter import Quotas
from onejob.ledger.limits import LISTED_KEYS
from onejob.stores.protocol import DUPLICATE_LIMIT, HISTORY_LIMIT, LOGS_KEPT

Responses: TypeAlias = dict[int | str, dict[str, Any]]


def _problem(description: str, *headers: str) -> dict[str, Any]:
    declared = {name: {"schema": {"type": "string"}} for name in headers}
    content = {MEDIA_TYPE: {"schema": SCHEMA}}
    return {"description": f"{description} (RFC 9457)", "content": content} | ({"headers": declared} if headers else {})


PROBLEM_RESPONSES: Responses = {
    "429": _problem("A quota or a limit of the caller is used up", "Retry-After"),
    "500": _problem("An unexpected error, which the server's log has"),
    "503": _problem("The ledger is unavailable, or the server is overloaded", "Retry-After"),
    "4XX": _problem("A problem"),
    "5XX": _problem("A problem"),
}
UNAUTHORIZED: Responses = {"401": _problem("No valid API key", "WWW-Authenticate")}
API_KEY = HTTPBearer(auto_error=False, description="An API key: `onejob keys add NAME --role ROLE --file keys.json`.")
PURPOSE = "Equal jobs run once. Undeclared query parameters are refused with 422."
WITHOUT_KEYS = (
    "This server has no API keys: it answers every request of its own machine, under a local name and through no "
    "proxy, and any other with 403."
)
SUBMIT_RESPONSES: Responses = {
    200: {
        "model": models.SubmitResponse | models.ValidatedSubmission,
        "description": "An existing job answers, or it was a check",
    },
    202: {"description": "A new job was created"},
}
NOT_MODIFIED: Responses = {304: {"description": "The job matches If-None-Match"}}
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"enum": ["state", "progress"]},
        "data": {"type": "string", "contentMediaType": "application/json", "description": "The whole job."},
        "id": {"type": "string"},
    },
    "required": ["event", "data", "id"],
}
STREAM_RESPONSES: Responses = {
    200: {"description": "The events", "content": {"text/event-stream": {"schema": EVENT}}},
    204: {"description": "The job has ended, and Last-Event-ID is its last event"},
}
CANCEL_RESPONSES: Responses = {
    200: {"description": "The job is canceled"},
    202: {"model": Job, "description": "Cancellation of the run was requested"},
}
REQUIRED_BODY = {"requestBody": {"required": True}}
"""A JSON body is required even if it is empty, since an HTML form of another site cannot send one."""


class JobConvertor(PathConvertor):
    """Converts a job's id at the end of a path; the id may have slashes, but does not end like another route's path."""

    regex = "(?!.*/(?:cancel|redrive|edit|run-now|events|duplicates|history|logs|explanation)$).+"


register_url_convertor("job", JobConvertor())

Keys = str | os.PathLike[str] | None
JSON_CONTENT = frozenset({"json", "application/json"})
CONTENT_SETTINGS = (
    "accept_content", "result_accept_content", "task_serializer", "result_serializer", "event_serializer",
)  # fmt: skip


def router(
    celery_app: Celery,
    *,
    keys: Keys = None,
    prefix: str = "",
    dependencies: Sequence[Any] = (),
    open: bool = False,  # noqa: A002 - the word for it
    quota: str | None = None,
    identity_quota: str | None = None,
    caller: Callable[..., Any] | None = None,
    may: May | None = None,
    waits_per_caller: int = WAITS_PER_CALLER,
    checks_per_minute: int = CHECKS_PER_MINUTE,
) -> APIRouter:
    """Return the HTTP API of a Celery app, for a FastAPI app: `app.include_router(router(celery_app))`.

    One of these has to authenticate the clients: `keys`, the file of API keys (`onejob keys add`); or `caller`; or
    `dependencies`, such as `[Depends(your_own_check)]`, which precede every route but those of health checks. Without
    any of these, only requests from this machine to a local host name are accepted, whatever `include_router` adds,
    which the router cannot see. `open=True` accepts every request: for an app whose middleware, or whose dependencies
    of `include_router`, authenticate. Raises `ConfigurationError` for an app that is unsafe to expose.

    `caller`: a function that returns the authenticated user of your app for a request, as a name or as a `Caller`. It
    is a FastAPI dependency: it may be async, and have dependencies of its own. A user who is given as a name sees only
    the jobs that it has submitted. `may(caller, action, target)` may forbid more: `submit` (a task's name), `read`,
    `cancel`, `run_now`, `redrive`, `edit` and `delete` (a job), `statistics` (None). A job that it must not read is not
    found. Without `keys`, `edit` takes a `may` that permits it.

    `quota`, `identity_quota`: limits on new jobs ("1000/day") of each caller or `onejob.submitter`, in total and with
    the same identity. They cannot be combined with `keys`, since each API key has its own quotas.

    `waits_per_caller`: how many event streams and long polls may be open at once in this process, per API key or
    caller; without either per address of a client. `checks_per_minute`: how many checks (`POST /duplicates/check`, and
    submissions with `validate_only`) this process answers, counted alike; one with a large body counts as several.
    """
    if caller is None and may is not None:
        raise ConfigurationError("may decides what a caller may do: give the function caller=, too")
    if iscoroutinefunction(may):
        raise ConfigurationError("may must be a plain function, which decides without I/O: it is called for each job")
    if caller is not None and keys is not None:
        raise ConfigurationError("give keys= or caller=, not both: each identifies the client")
    checks = list(dependencies)
    quotas = Quotas.parse(quota, identity_quota)
    if caller is not None:
        checks.append(caller_dependency(caller, may, quotas))
    if open and (checks or keys is not None):
        raise ConfigurationError(
            "open=True is for a router without keys=, caller= and dependencies=: give one or other"
        )
    key_file = None if keys is None else KeyFile(keys)
    is_local = not (open or checks or key_file)
    guard = Guard(keys=key_file, quotas=quotas, is_local=is_local)
    limits = BodyLimits(checks_per_minute)
    return _build_router(celery_app, guard, limits, prefix, checks, waits_per_caller=waits_per_caller)


def _build_router(
    celery_app: Celery, guard: Guard, limits: BodyLimits, prefix: str = "", checks: Sequence[Any] = (), **waits: Any
) -> APIRouter:
    """Return the router; `checks`: dependencies that authenticate a request, and may set its caller."""
    check_serializers(celery_app)
    if guard.quotas and guard.keys is not None:
        msg = "with API keys, each key has its own quotas: onejob keys add NAME --role submit --quota 1000/day"
        raise ConfigurationError(msg)
    tasks, ledger = exposed_tasks(celery_app), app_state_of(celery_app).ledger
    jobs = JobRoutes(ledger, checks=checks, **waits)
    security = list(checks)
    if guard.keys is not None:
        guard.keys.read()
        security.append(Depends(API_KEY))
    route = guarded(replace(guard, audit=RequestAudit(ledger)))
    api = APIRouter(prefix=prefix, route_class=route, tags=["jobs"], responses=PROBLEM_RESPONSES)
    for place, role, endpoint, shared in _routes_of(celery_app, tasks, jobs, limits):
        options, (method, path) = {**shared}, place.split()
        options["route_class_override"] = route_for(route, role, options.pop("direct", None))
        if role is not None and guard.keys is not None:
            options["responses"] = UNAUTHORIZED | options.get("responses", {})
        options["dependencies"] = [] if role is None else [*security, *options.get("dependencies", ())]
        api.add_api_route(path, endpoint, methods=[method], **options)
        if method == "GET" and options.get("response_class") is not StreamingResponse:
            # HEAD is GET without the content, which the server leaves out.
            api.add_api_route(path, endpoint, methods=["HEAD"], **options | {"include_in_schema": False})
    return api


def _returns(model: Any, **options: Any) -> dict[str, Any]:
    return {"response_model": model, **options}


def _lists(model: Any, limit: int | None = None, **options: Any) -> dict[str, Any]:
    """Return the options of a route that returns a list; `limit`: the most items; None: the list is always complete."""
    returned: Any = GenericAlias(list, model)
    return _returns(returned if limit is None else Annotated[returned, models.at_most(limit)], **options)


EMPTY = {"dependencies": [Depends(empty_body)], "openapi_extra": REQUIRED_BODY}
OF_ALL: dict[str, Any] = {"dependencies": [Depends(check_operator)]}
OPERATED = EMPTY | {"dependencies": [Depends(check_operator), Depends(empty_body)]}
JOB, ENTRY = _returns(Job, **EMPTY), _returns(models.ScheduleEntryView, **OPERATED)
BLOCKED = _returns(models.BlockView, status_code=201, **OF_ALL)
UNBLOCKED: dict[str, Any] = OF_ALL | {"status_code": 204, "response_class": Response}
LIMIT = _returns(models.LimitView, **OF_ALL)
SUBMITTED, PAGE = _returns(models.SubmitResponse, status_code=202), _returns(models.JobPage)
EXPLANATION = _returns(models.ExplanationView, **OF_ALL)
DUPLICATES = _lists(models.DuplicateView, DUPLICATE_LIMIT)
LOGS = _lists(models.RunLogView, LOGS_KEPT, **OF_ALL)
HISTORY = _lists(models.HistoryEntryView, HISTORY_LIMIT)
SAVED, COSTS = _lists(models.DuplicateStatsView, models.PAGE_LIMIT), _lists(models.CostView, models.PAGE_LIMIT)
STREAM = {"response_class": StreamingResponse, "responses": STREAM_RESPONSES}


def _routes_of(
    app: Celery, tasks: Mapping[str, Task], jobs: JobRoutes, limits: BodyLimits
) -> Iterable[tuple[str, Role | None, Any, Any]]:  # fmt: skip
    """Return the method and path, the role, the endpoint, and the options of each route, in the order of matching.

    The role is the lowest role that may call the endpoint; None: no API key is required.
    """
    operate, ledger, blocks = OperateRoutes(app, jobs), LedgerRoutes(app, jobs.ledger), BlockRoutes(app, jobs.ledger)
    rooms = LimitRoutes(app, jobs.ledger)
    submit, submit_directly = submit_endpoint(app, tasks, limits)
    found = _returns(Job, responses=NOT_MODIFIED, direct=jobs.get_job_directly)
    return (
        ("POST /jobs", Role.SUBMIT, submit, SUBMITTED | {"responses": SUBMIT_RESPONSES, "direct": submit_directly}),
        ("POST /duplicates/check", Role.READ, check_endpoint(app, tasks, limits), _returns(models.DuplicateCheckView)),
        # This route stands before the routes of one job, whose id may be any text.
        ("POST /jobs/bulk", Role.OPERATE, operate.operate_many, {}),
        ("POST /jobs/{job_id:path}/cancel", Role.OPERATE, operate.cancel, JOB | {"responses": CANCEL_RESPONSES}),
        ("POST /jobs/{job_id:path}/redrive", Role.OPERATE, operate.redrive, JOB | {"status_code": 202}),
        ("POST /jobs/{job_id:path}/edit", Role.EDIT, operate.edit, SUBMITTED),
        ("POST /jobs/{job_id:path}/run-now", Role.OPERATE, operate.run_now, JOB),
        ("DELETE /jobs/{job_id:job}", Role.OPERATE, operate.delete, {"status_code": 204, "response_class": Response}),
        ("POST /dead/redrive", Role.OPERATE, operate.redrive_many, {}),
        ("GET /jobs", Role.READ, jobs.list_jobs, PAGE),
        ("GET /jobs/{job_id:job}", Role.READ, jobs.get_job, found),
        ("GET /jobs/{job_id:path}/events", Role.READ, jobs.stream_events, STREAM),
        ("GET /jobs/{job_id:path}/duplicates", Role.READ, jobs.list_duplicates, DUPLICATES),
        ("GET /jobs/{job_id:path}/history", Role.READ, jobs.list_history, HISTORY),
        ("GET /jobs/{job_id:path}/logs", Role.OPERATE, jobs.list_logs, LOGS),
        ("GET /jobs/{job_id:path}/explanation", Role.OPERATE, jobs.explain_job, EXPLANATION),
        ("GET /duplicates/summary", Role.READ, jobs.summarize_duplicates, SAVED),
        ("GET /costs", Role.READ, jobs.list_costs, COSTS),
        ("GET /dead", Role.OPERATE, jobs.list_dead_letters, PAGE),
        ("GET /dead/groups", Role.OPERATE, jobs.group_dead_letters, _returns(models.FailureGroupsView)),
        ("GET /schedules", Role.READ, ledger.list_schedules, _lists(models.ScheduleEntryView, **OF_ALL)),
        ("POST /schedules/{entry:path}/pause", Role.OPERATE, ledger.pause_schedule, ENTRY),
        ("POST /schedules/{entry:path}/resume", Role.OPERATE, ledger.resume_schedule, ENTRY),
        ("POST /schedules/{entry:path}/run", Role.OPERATE, ledger.run_schedule, OPERATED),
        ("GET /pauses", Role.READ, blocks.list_pauses, _lists(models.BlockView, BLOCK_LIMIT, **OF_ALL)),
        ("POST /pauses", Role.OPERATE, blocks.pause, BLOCKED),
        ("DELETE /pauses/{block_id}", Role.OPERATE, blocks.resume, UNBLOCKED),
        ("GET /strikes", Role.READ, blocks.list_strikes, _lists(models.BlockView, BLOCK_LIMIT, **OF_ALL)),
        ("POST /strikes", Role.OPERATE, blocks.strike, BLOCKED),
        ("DELETE /strikes/{block_id}", Role.OPERATE, blocks.lift, UNBLOCKED),
        ("GET /limits", Role.READ, rooms.list_limits, _lists(models.LimitView, LISTED_KEYS, **OF_ALL)),
        ("GET /limits/{key:path}", Role.READ, rooms.get_limit, LIMIT),
        ("PUT /limits/{key:path}", Role.OPERATE, rooms.set_limit, LIMIT),
        ("DELETE /limits/{key:path}", Role.OPERATE, rooms.clear_limit, UNBLOCKED),
        ("GET /audit", Role.OPERATE, ledger.list_audit, _lists(models.AuditEntryView, models.PAGE_LIMIT, **OF_ALL)),
        ("GET /queues", Role.READ, ledger.list_queues, _lists(models.QueueLoadView, **OF_ALL)),
        ("GET /activity", Role.READ, ledger.get_activity, _returns(models.ActivityView, **OF_ALL)),
        ("GET /healthz", None, ledger.healthz, {}),
        ("GET /readyz", None, ledger.readyz, {}),
        ("GET /metrics", Role.READ, ledger.metrics, {"response_class": PlainTextResponse, **OF_ALL}),
    )


def create_app(
    celery_app: Celery,
    keys: Keys = None,
    *,
    quota: str | None = None,
    identity_quota: str | None = None,
    waits_per_caller: int = WAITS_PER_CALLER,
    checks_per_minute: int = CHECKS_PER_MINUTE,
) -> FastAPI:
    """Return the HTTP API of a Celery app as a standalone ASGI app.

    Without a file of `keys` it accepts only requests from the same machine, through no proxy and addressed to a local
    name, whatever address the server is bound to. `router` explains quotas, waits, checks and errors.
    """
    app = FastAPI(
        title="onejob",
        description=" ".join([PURPOSE, *([WITHOUT_KEYS] if keys is None else [])]),
        openapi_url=None,  # replaced below by a guarded route, since the document names the exposed tasks
        redirect_slashes=False,
    )
    app.state.closing = Event()
    key_file = None if keys is None else KeyFile(keys)
    guard = Guard(keys=key_file, quotas=Quotas.parse(quota, identity_quota), standalone=True)
    limits = BodyLimits(checks_per_minute)
    api = _build_router(celery_app, guard, limits, closing=app.state.closing, waits_per_caller=waits_per_caller)

    def openapi_document(request: Request) -> dict[str, Any]:
        root_path = request.scope.get("root_path", "")
        security: dict[str, Any] = {"security": []} if keys is None else {}
        return app.openapi() | security | ({"servers": [{"url": root_path}]} if root_path else {})

    route = route_for(api.route_class, Role.READ)
    api.add_api_route(
        "/openapi.json", openapi_document, methods=["GET", "HEAD"], include_in_schema=False, route_class_override=route
    )
    app.include_router(api)
    for error_type in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error_type, handle_exception)
    app.add_middleware(DirectRoutes, routes=api.routes)  # the innermost, so that all others precede every route
    app.add_middleware(ProtectionMiddleware, is_local=keys is None)
    return app


def accepts_html(scope: Scope) -> bool:
    """Return whether a browser requests a page: the request accepts HTML by name."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in scope["headers"])


class ProtectionMiddleware:
    """Adds `headers` and the security headers to each response that does not set them, such as a 404 of the app.

    `is_local`: accept only requests from this machine, through no proxy, to a local host name.
    """

    def __init__(self, app: ASGIApp, headers: Headers = (), *, is_local: bool) -> None:
        self._app = app
        self._headers = headers
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app, or refuse the request; and add the headers to the response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = add_security_headers(message["headers"], self._headers)
            await send(message)

        respond = self._app
        try:
            if self._is_local and scope["type"] != "lifespan":
                check_local(scope)
        except Problem as problem:
            respond = problem.page() if accepts_html(scope) else problem.response()
        await respond(scope, receive, send_with_headers)


def check_serializers(celery_app: Celery) -> None:
    """Raise `ConfigurationError` for an app that reads or writes anything but JSON: other formats may execute code."""
    for name in CONTENT_SETTINGS:
        value = celery_app.conf.get(name) or ()
        formats, fix = ([value], "'json'") if isinstance(value, str) else (map(str, value), "['json']")
        if others := [each for each in formats if each.lower() not in JSON_CONTENT]:
            raise ConfigurationError(
                f"{name} has {', '.join(others)}: a message in another format than JSON may execute code in the "
                f"process that reads it, so an app exposed over HTTP uses JSON only: set app.conf.{name} = {fix}"
            )
