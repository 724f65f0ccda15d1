"""The router for a FastAPI app, the standalone app, and its server."""

from __future__ import annotations

import ipaddress
import os
from copy import deepcopy
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from threading import Event
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse

from onejob.api import openapi
from onejob.api.api_keys import KeyFile, Role
from onejob.api.auth import guarded, requires_role
from onejob.api.callers import caller_dependency
from onejob.api.problems import Problem, add_security_headers, handle_exception
from onejob.api.request_models import exposed_tasks
from onejob.api.response_models import DuplicateStatsView, DuplicateView, HistoryEntryView, JobView, SubmitResponse
from onejob.api.routes.health import HealthRoutes
from onejob.api.routes.jobs import JobRoutes, get_job_endpoint
from onejob.api.routes.operate import OperateRoutes
from onejob.api.routes.submit import submit_endpoint
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError
from onejob.jobs.quota import Quotas

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery import Celery
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from onejob.api.callers import May

Keys = str | os.PathLike[str] | None
SHUTDOWN_SECONDS = 5
"""How long open requests may continue after a signal to stop, since streams and waits can be long."""
UNSAFE_CONTENT = ("pickle", "python-serialize", "yaml")
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def router(
    celery_app: Celery,
    *,
    keys: Keys = None,
    prefix: str = "",
    quota: str | None = None,
    identity_quota: str | None = None,
    caller: Callable[..., Any] | None = None,
    may: May | None = None,
) -> APIRouter:
    """Return the HTTP API of a Celery app, for a FastAPI app: `app.include_router(router(celery_app))`.

    `keys`: the file of API keys (`onejob keys add`). Without it the router accepts every request that reaches it:
    authenticate them with dependencies of your app. Raises `ConfigurationError` for an app that is unsafe to expose.

    `caller`: a function that returns the authenticated user of your app for a request, as a name or as a `Caller`. It
    is a FastAPI dependency: it may be async, and have dependencies of its own. A user who is given as a name sees only
    the jobs that it has submitted. `may(caller, action, target)` may forbid more: `submit` (a task's name), `read`,
    `cancel` and `redrive` (a job), `statistics` (None). A job that it forbids to read is not found.

    `quota`, `identity_quota`: limits on new jobs ("1000/day") of each caller or `onejob.submitter`, in total and with
    the same identity. They cannot be combined with `keys`, since each API key has its own quotas.
    """
    quotas = Quotas.parse(quota, identity_quota)
    if caller is None:
        if may is not None:
            raise ConfigurationError("may decides what a caller may do: give the function caller=, too")
        return _build_router(celery_app, keys, prefix, quotas, standalone=False)
    if iscoroutinefunction(may):
        raise ConfigurationError("may must be a plain function, which decides without I/O: it is called for each job")
    if keys is not None:
        raise ConfigurationError("give keys= or caller=, not both: each identifies the client")
    dependency = caller_dependency(caller, may, quotas)
    return _build_router(celery_app, None, prefix, quotas, standalone=False, caller=dependency)


def _build_router(
    celery_app: Celery,
    keys: Keys,
    prefix: str,
    quotas: Quotas,
    *,
    standalone: bool,
    closing: Event | None = None,
    caller: Any = None,
) -> APIRouter:
    """Return the router; `standalone`: it is not mounted in another app, which could add dependencies.

    `caller`: the dependency that sets the caller of a request.
    """
    check_accept_content(celery_app)
    if quotas and keys is not None:
        msg = "with API keys, each key has its own quotas: onejob keys add NAME --role submit --quota 1000/day"
        raise ConfigurationError(msg)
    tasks, ledger = exposed_tasks(celery_app), app_state_of(celery_app).ledger
    key_file = None if keys is None else KeyFile(keys)
    if key_file is not None:
        key_file.read()
    route = guarded(key_file, quotas, standalone=standalone)
    api = APIRouter(prefix=prefix, route_class=route, tags=["jobs"], responses=openapi.PROBLEM_RESPONSES)
    security = [] if caller is None else [caller]
    if key_file is not None:
        security.append(Depends(HTTPBearer(auto_error=False, description="An API key.")))
    options: dict[str, Any] = {"response_model": SubmitResponse, "responses": openapi.SUBMIT_RESPONSES}
    api.post("/jobs", status_code=202, dependencies=security, **options)(submit_endpoint(celery_app, tasks))
    job_routes = JobRoutes(ledger, closing or Event())
    _add_job_routes(api, job_routes, security)
    _add_operate_routes(api, OperateRoutes(celery_app, job_routes), security)
    _add_health_routes(api, HealthRoutes(celery_app, ledger), security)
    return api


def _add_job_routes(api: APIRouter, routes: JobRoutes, security: list[Any]) -> None:
    get: Any = partial(api.get, dependencies=security)
    get("/jobs", response_model_exclude_unset=True)(routes.list_jobs)
    get("/jobs/{job_id}", response_model=JobView, responses=openapi.NOT_MODIFIED)(get_job_endpoint(routes))
    stream: dict[str, Any] = {"response_class": StreamingResponse, "responses": openapi.STREAM_RESPONSES}
    get("/jobs/{job_id}/events", **stream)(routes.stream_events)
    get("/jobs/{job_id}/duplicates", response_model=list[DuplicateView])(routes.list_duplicates)
    get("/jobs/{job_id}/history", response_model=list[HistoryEntryView])(routes.list_history)
    get("/duplicates/summary", response_model=list[DuplicateStatsView])(routes.summarize_duplicates)
    get("/dead", response_model_exclude_unset=True)(routes.list_dead_letters)


def _add_operate_routes(api: APIRouter, routes: OperateRoutes, security: list[Any]) -> None:
    post: Any = partial(api.post, dependencies=security)
    options = {"response_model": JobView, "openapi_extra": openapi.REQUIRED_BODY}
    post("/jobs/{job_id}/cancel", responses=openapi.CANCEL_RESPONSES, **options)(routes.cancel)
    post("/jobs/{job_id}/redrive", status_code=202, **options)(routes.redrive)
    post("/dead/redrive")(routes.redrive_many)


def _add_health_routes(api: APIRouter, routes: HealthRoutes, security: list[Any]) -> None:
    api.get("/healthz")(routes.healthz)
    api.get("/readyz")(routes.readyz)
    api.get("/metrics", dependencies=security, response_class=PlainTextResponse)(routes.metrics)


def create_app(
    celery_app: Celery, keys: Keys = None, *, quota: str | None = None, identity_quota: str | None = None
) -> FastAPI:
    """Return the HTTP API of a Celery app as a standalone ASGI app.

    Without a file of `keys` it accepts only requests from the same machine, addressed to one of `LOCAL_NAMES`, whatever
    address the server is bound to. Quotas and errors are as for `router`.
    """
    app = FastAPI(
        title="onejob",
        description="Equal jobs run once. Undeclared query parameters are refused with 422.",
        openapi_url=None,  # replaced below by a guarded route, since the document names the exposed tasks
        redirect_slashes=False,
    )
    app.state.closing = Event()
    quotas = Quotas.parse(quota, identity_quota)
    api = _build_router(celery_app, keys, "", quotas, standalone=True, closing=app.state.closing)

    @api.get("/openapi.json", include_in_schema=False)
    @requires_role(Role.READ)
    def openapi_document() -> dict[str, Any]:
        return app.openapi()

    app.include_router(api)
    for error_type in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error_type, handle_exception)
    if keys is None:
        app.add_middleware(LocalOnlyMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    return app


class SecurityHeadersMiddleware:
    """Adds the security headers to responses that no route has created, such as a 404 of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app, and add the headers to its response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = add_security_headers(message["headers"])
            await send(message)

        await self._app(scope, receive, send_with_headers)


class LocalOnlyMiddleware:
    """Accepts only requests from this machine to a local host name, which prevents DNS rebinding."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app, or refuse the request."""
        if scope["type"] == "lifespan" or _is_local(scope):
            await self._app(scope, receive, send)
            return
        detail = "without API keys this server accepts only requests from the same machine, to localhost or 127.0.0.1"
        await Problem("forbidden", detail).response()(scope, receive, send)


def _is_local(scope: Scope) -> bool:
    client = (scope.get("client") or ("",))[0]
    return _is_local_pair(client, tuple(value for name, value in scope["headers"] if name == b"host"))


@lru_cache(maxsize=256)
def _is_local_pair(client: str, hosts: tuple[bytes, ...]) -> bool:
    return is_loopback(client) and all(_without_port(host.decode("latin-1")) in LOCAL_NAMES for host in hosts)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_accept_content(celery_app: Celery) -> None:
    """Raise `ConfigurationError` for an app whose workers accept messages that can execute code."""
    accepted = [str(each) for each in celery_app.conf.accept_content or ()]
    unsafe = [each for each in accepted if any(word in each.lower() for word in UNSAFE_CONTENT)]
    if unsafe:
        msg = (
            f"accept_content has {', '.join(unsafe)}, which lets a message execute code in a worker: an app that is "
            "exposed over HTTP must accept JSON only. Set app.conf.accept_content = ['json']"
        )
        raise ConfigurationError(msg)


def log_config(*, as_json: bool) -> dict[str, Any]:
    """Return the logging configuration: uvicorn's with the events of jobs; `as_json`: one JSON object per line."""
    from uvicorn.config import LOGGING_CONFIG

    config: dict[str, Any] = deepcopy(LOGGING_CONFIG)
    config["loggers"]["onejob"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    if as_json:
        config["formatters"] = {
            name: {"()": "onejob.observability.logs.JsonFormatter"} for name in config["formatters"]
        }
    return config


def serve(
    celery_app: Celery, *, host: str = "127.0.0.1", port: int = 8000, keys: Keys = None, log_json: bool = False
) -> None:
    """Serve the HTTP API until SIGINT or SIGTERM. Raises `ConfigurationError` for an unsafe configuration."""
    import uvicorn

    if keys is None and not is_loopback(host):
        msg = (
            f"without API keys the server binds to loopback only, not to {host}: create a key with "
            "`onejob keys add NAME --role submit --file keys.json`, and serve with --keys keys.json"
        )
        raise ConfigurationError(msg)
    app = create_app(celery_app, keys)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_http_protocol(),
        log_level="info",
        log_config=log_config(as_json=log_json),
        server_header=False,
        proxy_headers=False,  # whether a client is local is decided by its connection, not by a header
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )

    class Server(uvicorn.Server):
        """uvicorn's server, which ends waits and streams on shutdown."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Begin the shutdown."""
            app.state.closing.set()
            super().handle_exit(sig, frame)

    Server(config).run()


def _http_protocol() -> Any:
    """Return httptools with a limit on headers if it is installed, else uvicorn's default, h11, which has one."""
    try:
        from onejob.api.http_limits import BoundedProtocol
    except ImportError:
        return "auto"
    return BoundedProtocol
