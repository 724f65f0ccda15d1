"""The dashboard as an ASGI app."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import Route

from onejob.api.app import LocalOnlyMiddleware
from onejob.api.problems import handle_exception
from onejob.pages.access import Access
from onejob.pages.actions import ACTIONS
from onejob.pages.endpoints import Endpoints
from onejob.pages.headers import PageHeaders
from onejob.pages.site import Site
from onejob.pages.views import VIEWS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.pages.access import Authorize


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

    `redact`: gets a job, the name of a value (`arguments`, `result`, `progress`, `error`, `reason`, or `step` and its
    name) and the value, and returns what the pages show instead. A `reason` is a text of the job or of its history,
    which may quote its error. With it, jobs are neither searched by argument, reason or identity nor redriven
    with other arguments, and identities and fingerprints, hashes of arguments, are left out: these would reveal what is
    not shown.

    `closing`: set by the server when it begins to shut down, so that open streams end.

    Raises `ConfigurationError` for an invalid key file, and for both `authorize` and `keys`.
    """
    access = Access(authorize, keys)
    endpoints = Endpoints(Site(celery_app, redact), access, closing or Event())
    routes = [
        Route("/live", endpoints.live),
        Route("/static/{version}/{name}", endpoints.static),
        *(Route(view.path, endpoints.show(view)) for view in VIEWS),
        *(Route(action.path, endpoints.act(action), methods=["POST"]) for action in ACTIONS),
    ]
    if access.keys is not None:
        routes.append(Route("/login", endpoints.login, methods=["GET", "POST"]))
        routes.append(Route("/logout", endpoints.logout, methods=["POST"]))
    handlers: Any = {404: endpoints.not_found, 405: endpoints.wrong_method, Exception: handle_exception}
    app = Starlette(routes=routes, exception_handlers=handlers)
    if access.is_local:
        app.add_middleware(LocalOnlyMiddleware)
    app.add_middleware(PageHeaders)
    return app
