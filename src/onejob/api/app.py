"""The router to mount in an app, the app that stands alone, and the server that serves it."""

from __future__ import annotations

import ipaddress
import os
from copy import deepcopy
from functools import lru_cache
from threading import Event
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse

from onejob.api.api_keys import KeyFile, Role
from onejob.api.auth import guarded, needs
from onejob.api.openapi import ASKED, BODY, PROBLEMS, STOPPING, STREAM, UNCHANGED
from onejob.api.problems import Problem, answer_with_problem, with_headers
from onejob.api.quotas import Quotas
from onejob.api.request_models import exposed_tasks
from onejob.api.response_models import Answer, DuplicateStatsView, DuplicateView, EntryView, JobView
from onejob.api.routes.health import Health
from onejob.api.routes.jobs import Reading, job_endpoint
from onejob.api.routes.operate import Operating
from onejob.api.routes.submit import endpoint
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from types import FrameType

    from celery import Celery
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

Keys = str | os.PathLike[str] | None
SHUTDOWN_SECONDS = 5
"""How long requests may go on after a signal to end; streams and waits have no end of their own."""
UNSAFE = ("pickle", "python-serialize", "yaml")
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def router(
    celery_app: Celery,
    *,
    keys: Keys = None,
    prefix: str = "",
    quota: str | None = None,
    identity_quota: str | None = None,
) -> APIRouter:
    """Return the job API of a Celery app, to be mounted in a FastAPI app: `app.include_router(router(celery_app))`.

    `keys`: the file of API keys (`onejob keys add`). Without it the router lets everybody in who gets there: guard it
    by your app's own dependencies then. Raises `ConfigurationError` for an app that should not be reached so.

    `quota`, `identity_quota`: how many new jobs may be asked for ("1000/day"), in all and for the same arguments, by
    everybody together; with `keys` each key has quotas of its own, and these are refused.
    """
    return _router(celery_app, keys, prefix, Quotas.parse(quota, identity_quota), alone=False)


def _router(
    celery_app: Celery, keys: Keys, prefix: str, quotas: Quotas, *, alone: bool, closing: Event | None = None
) -> APIRouter:
    """Return the router; `alone`: no other app has anything to say about its requests."""
    check_content(celery_app)
    if quotas and keys is not None:
        msg = "with API keys each key has quotas of its own: onejob keys add NAME --role submit --quota 1000/day"
        raise ConfigurationError(msg)
    tasks, ledger = exposed_tasks(celery_app), app_state_of(celery_app).ledger
    file = None if keys is None else KeyFile(keys)
    if file is not None:
        file.read()
    made = APIRouter(prefix=prefix, route_class=guarded(file, quotas, alone=alone), tags=["jobs"], responses=PROBLEMS)
    reading = Reading(ledger, closing or Event())
    secure = [] if file is None else [Depends(HTTPBearer(auto_error=False, description="An API key."))]
    asked: dict[str, Any] = {"dependencies": secure, "status_code": 202, "response_model": Answer, "responses": ASKED}
    made.post("/jobs", **asked)(endpoint(celery_app, tasks))
    _add_reading(made, reading, secure)
    _add_operating(made, Operating(celery_app, reading), secure)
    _add_health(made, Health(celery_app, ledger), secure)
    return made


def _add_reading(made: APIRouter, reading: Reading, secure: list[Any]) -> None:
    made.get("/jobs", dependencies=secure, response_model_exclude_unset=True)(reading.jobs)
    job_to_dict: dict[str, Any] = {"dependencies": secure, "response_model": JobView, "responses": UNCHANGED}
    made.get("/jobs/{job_id}", **job_to_dict)(job_endpoint(reading))
    streamed: dict[str, Any] = {"dependencies": secure, "response_class": StreamingResponse, "responses": STREAM}
    made.get("/jobs/{job_id}/events", **streamed)(reading.events)
    made.get("/jobs/{job_id}/duplicates", dependencies=secure, response_model=list[DuplicateView])(reading.duplicates)
    made.get("/jobs/{job_id}/history", dependencies=secure, response_model=list[EntryView])(reading.history)
    made.get("/duplicates/summary", dependencies=secure, response_model=list[DuplicateStatsView])(reading.summary)
    made.get("/dead", dependencies=secure, response_model_exclude_unset=True)(reading.dead)


def _add_operating(made: APIRouter, operating: Operating, secure: list[Any]) -> None:
    job_to_dict: dict[str, Any] = {"dependencies": secure, "response_model": JobView, "openapi_extra": BODY}
    made.post("/jobs/{job_id}/cancel", responses=STOPPING, **job_to_dict)(operating.cancel)
    made.post("/jobs/{job_id}/redrive", status_code=202, **job_to_dict)(operating.redrive)
    made.post("/dead/redrive", dependencies=secure)(operating.redrive_many)


def _add_health(made: APIRouter, health: Health, secure: list[Any]) -> None:
    made.get("/healthz")(health.healthz)
    made.get("/readyz")(health.readyz)
    made.get("/metrics", dependencies=secure, response_class=PlainTextResponse)(health.metrics)


def create_app(
    celery_app: Celery, keys: Keys = None, *, quota: str | None = None, identity_quota: str | None = None
) -> FastAPI:
    """Return the job API of a Celery app as an app of its own.

    Without a file of `keys` it answers only who asks from this machine, by one of its local names, wherever the server
    is bound. The quotas are those of `router`, and it raises `ConfigurationError` as that does.
    """
    app = FastAPI(
        title="onejob",
        description="Jobs that run once. A query parameter that a path does not declare is refused with 422.",
        openapi_url=None,  # which has a guard of its own below: what can be asked for is nobody's business
        redirect_slashes=False,
    )
    app.state.closing = Event()
    quotas = Quotas.parse(quota, identity_quota)
    made = _router(celery_app, keys, "", quotas, alone=True, closing=app.state.closing)

    @made.get("/openapi.json", include_in_schema=False)
    @needs(Role.READ)
    def document() -> dict[str, Any]:
        return app.openapi()

    app.include_router(made)
    for error in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error, answer_with_problem)
    if keys is None:
        app.add_middleware(LocalOnly)
    app.add_middleware(Headers)
    return app


class Headers:
    """Puts the headers that every answer carries on those that no route has made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_headers(message["headers"])
            await send(message)

        await self._app(scope, receive, guarded_send)


class LocalOnly:
    """Lets in only who asks from this machine under a local name, so that no foreign page can point a name here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or _is_local(scope):
            await self._app(scope, receive, send)
            return
        detail = "without API keys this server answers only who asks from its machine, as localhost or 127.0.0.1"
        await Problem("forbidden", detail).response()(scope, receive, send)


def _is_local(scope: Scope) -> bool:
    client = (scope.get("client") or ("",))[0]
    return _is_ours(client, tuple(value for name, value in scope["headers"] if name == b"host"))


@lru_cache(maxsize=256)
def _is_ours(client: str, hosts: tuple[bytes, ...]) -> bool:
    return is_loopback(client) and all(_without_port(host.decode("latin-1")) in LOCAL_NAMES for host in hosts)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def is_loopback(host: str) -> bool:
    """Tell whether an address is one that no other machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_content(celery_app: Celery) -> None:
    """Raise `ConfigurationError` for an app whose workers would run what a message says."""
    accepted = [str(each) for each in celery_app.conf.accept_content or ()]
    unsafe = [each for each in accepted if any(word in each.lower() for word in UNSAFE)]
    if unsafe:
        msg = (
            f"accept_content has {', '.join(unsafe)}, by which a message can run code in a worker: an app that is "
            "reached over HTTP accepts JSON only. Set app.conf.accept_content = ['json']"
        )
        raise ConfigurationError(msg)


def log_config(*, as_json: bool) -> dict[str, Any]:
    """Return how the server logs: as uvicorn does, what happens to jobs too; or everything as lines of JSON."""
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
    """Serve the job API until a signal comes. Raises `ConfigurationError` for what would be open to everybody."""
    import uvicorn

    if keys is None and not is_loopback(host):
        msg = (
            f"without API keys the server binds to loopback only, not to {host}: make a key with "
            "`onejob keys add NAME --role submit --file keys.json`, and serve with --keys keys.json"
        )
        raise ConfigurationError(msg)
    app = create_app(celery_app, keys)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_parser(),
        log_level="info",
        log_config=log_config(as_json=log_json),
        server_header=False,
        proxy_headers=False,  # who asks from this machine is told by the connection, not by what a header says
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )

    class Server(uvicorn.Server):
        """uvicorn's server, which lets nobody wait when it is told to end."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Begin to end."""
            app.state.closing.set()
            super().handle_exit(sig, frame)

    Server(config).run()


def _parser() -> Any:
    """Return what parses requests: the fast parser with a limit, or what uvicorn has."""
    try:
        from onejob.api.http_limits import BoundedProtocol
    except ImportError:
        return "auto"
    return BoundedProtocol
