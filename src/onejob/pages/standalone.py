"""The standalone app: the HTTP API, with the dashboard below `/dashboard`."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Route

from onejob.api.app import LocalOnlyMiddleware, SecurityHeadersMiddleware, create_app
from onejob.api.problems import handle_exception
from onejob.celery.options import options_of, tasks_of
from onejob.pages.app import dashboard

if TYPE_CHECKING:
    from celery import Celery
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from onejob.api.app import Keys

PATH = "/dashboard"


def create_app_with_dashboard(celery_app: Celery, keys: Keys = None, **options: Any) -> FastAPI:
    """Return the app of `onejob.api.create_app`, with the same keys and options, and the dashboard; `/` leads to it.

    For a Celery app that exposes no task it is the dashboard alone.
    """
    if any(options_of(task).expose for task in tasks_of(celery_app).values()):
        app = create_app(celery_app, keys, **options)
    else:
        app = _create_app_without_api(keys)
    app.router.routes.append(Route("/", _redirect))
    mount_dashboard(app, dashboard(celery_app, keys=keys, closing=app.state.closing))
    return app


def _create_app_without_api(keys: Keys) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers={HTTPException: handle_exception})
    app.state.closing = Event()
    if keys is None:
        app.add_middleware(LocalOnlyMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    return app


def mount_dashboard(app: FastAPI, pages: Starlette) -> None:
    """Mount a dashboard below `PATH`, and redirect the path itself, which has no slash at its end."""
    app.router.routes.append(Route(PATH, _redirect))
    app.mount(PATH, pages)


def _redirect(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/", 307)
