"""The dashboard as an ASGI app, and the standalone app: the HTTP API with the dashboard below `/dashboard`."""

import os
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

from celery import Celery
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from onejob.api.api_keys import KeyFile
from onejob.api.app import Keys, ProtectionMiddleware, create_app
from onejob.api.problems import handle_exception
from onejob.celery.submission.options import tasks_of
from onejob.errors import ConfigurationError
from onejob.jobs.public_view import Job
from onejob.pages.access import PAGE_HEADERS, Access, Authorize
from onejob.pages.actions import ACTIONS
from onejob.pages.activity import DUPLICATES, OVERVIEW, TASKS
from onejob.pages.blocks import BLOCKS
from onejob.pages.context import Context
from onejob.pages.endpoints import Endpoints
from onejob.pages.job import EDIT, JOB
from onejob.pages.job_list import FIND, JOBS, PALETTE
from onejob.pages.limits import LIMITS
from onejob.pages.lists import AUDIT, DEAD_LETTERS, SCHEDULES, WORKERS
from onejob.pages.rendering import VersionedFiles
from onejob.pages.sessions import Sessions

VIEWS = (
    OVERVIEW, JOBS, JOB, EDIT, DUPLICATES, DEAD_LETTERS, TASKS, WORKERS, SCHEDULES, BLOCKS, LIMITS, AUDIT, PALETTE,
    FIND,
)  # fmt: skip
"""All pages, in the order in which their paths are matched."""


def dashboard(
    celery_app: Celery,
    *,
    authorize: Authorize | None = None,
    keys: str | os.PathLike[str] | None = None,
    redact: Callable[[Job, str, Any], Any] | None = None,
    closing: Event | None = None,
) -> Starlette:
    """Return the dashboard of a Celery app as an ASGI app: `app.mount("/onejob", onejob.dashboard(celery_app))`.

    `authorize`: a function, which may be async, that gets a request (`starlette.requests.Request`) and returns the
    user: a `User`, or a name and a role (`read`, `operate` or `edit`); None refuses the request, and so does a name
    with the role None, which the audit log then has; a response is sent as it is, such as a redirect to a login page.
    `keys`: instead, a file of API keys (`onejob keys add`) with which people log in, and whose roles count. Without
    either, only requests from this machine to a local host name are accepted, with the role `operate`.

    `redact`: gets a `Job`, the name of a value (`arguments`, `result`, `progress`, `error`, `reason`, `log`, or `step`
    and its name) and the value, and returns what the pages show instead. A `reason` is a text of the job or of its
    history, which may quote its error. With it, jobs are neither searched by argument, error or identity nor redriven
    with other arguments, and identities and fingerprints, hashes of arguments, are left out: these would reveal what is
    not shown. Of the URL of a webhook only the host is shown.

    `closing`: set by the server when it begins to shut down, so that open streams end.

    Raises `ConfigurationError` for an invalid key file, and for both `authorize` and `keys`.
    """
    if authorize is not None and keys is not None:
        raise ConfigurationError("give authorize= or keys=, not both: each identifies the user")
    context, sessions = Context(celery_app, redact), None
    if keys is not None:
        key_file = KeyFile(keys)
        key_file.read()
        sessions = Sessions(key_file, lambda: context.ledger)
    access = Access(authorize, sessions)
    endpoints = Endpoints(context, access, closing or Event())
    routes = [
        Route("/live", endpoints.guarded(endpoints.live, "live")),
        Mount("/static/{version}", VersionedFiles()),
        *(Route(view.path, endpoints.show(view)) for view in VIEWS),
        *(Route(action.path, endpoints.act(action), methods=["POST"]) for action in ACTIONS),
    ]
    if sessions is not None:
        login, logout = partial(endpoints.login, sessions), partial(endpoints.logout, sessions)
        routes.append(Route("/login", login, methods=["GET", "POST"]))
        routes.append(Route("/logout", endpoints.guarded(logout, "logout"), methods=["POST"]))
    handlers: Any = {404: endpoints.report, 405: endpoints.wrong_method, Exception: handle_exception}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.add_middleware(ProtectionMiddleware, headers=PAGE_HEADERS, is_local=access.is_local)
    return app


PATH = "/dashboard"


def create_app_with_dashboard(celery_app: Celery, keys: Keys = None, **options: Any) -> FastAPI:
    """Return the app of `onejob.api.create_app`, with the same keys and options, and the dashboard; `/` leads to it.

    For a Celery app that exposes no task it is the dashboard alone.
    """
    if any(task._onejob.expose for task in tasks_of(celery_app).values()):
        app = create_app(celery_app, keys, **options)
    else:
        app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers={HTTPException: handle_exception})
        app.state.closing = Event()
        app.add_middleware(ProtectionMiddleware, is_local=keys is None)
    app.router.routes.append(Route("/", _redirect))
    mount_dashboard(app, dashboard(celery_app, keys=keys, closing=app.state.closing))
    return app


def mount_dashboard(app: FastAPI, pages: Starlette) -> None:
    """Mount a dashboard below `PATH`, and redirect the path itself, which has no slash at its end."""
    app.router.routes.append(Route(PATH, _redirect))
    app.mount(PATH, pages)


def _redirect(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/", 307)
