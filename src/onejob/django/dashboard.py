"""The dashboard in a Django project: as a view, behind the project's middleware, or mounted beside it in `asgi.py`."""

from functools import lru_cache
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt
from starlette.requests import Request

import onejob
from onejob.api.api_keys import Role
from onejob.api.root_path import path_of
from onejob.django.conf import celery_app, redact_hook
from onejob.pages.access import Decision, User

PERMISSIONS = {
    "onejob.edit_job": Role.EDIT,
    "onejob.operate_job": Role.OPERATE,
    "onejob.view_job": Role.READ,
}
"""The role of a user by permission. Each role includes the roles below it."""


def user_of(user: Any) -> User | None:
    """Return an active user of Django as a user of the dashboard; None without a permission for jobs.

    Raises `InvalidArgumentsError` for a user name that cannot be recorded.
    """
    role = next((role for permission, role in PERMISSIONS.items() if user.has_perm(permission)), None)
    return None if role is None else User(user.get_username(), role)


DECISION = "onejob.decision"
"""The name in the WSGI environ of the view's decision about the user."""


def authorize(request: Request) -> Decision:
    """Decide about a request by the permissions of its user in Django, for `onejob.dashboard(authorize=...)`.

    `onejob.view_job`, `onejob.operate_job` and `onejob.edit_job` are the roles `read`, `operate` and `edit`. A user who
    is not logged in is redirected to the admin's login, or else to `LOGIN_URL`. In ASGI the user is read from Django's
    session.
    """
    environ = request.scope.get("wsgi_environ", {})
    if DECISION in environ:
        return environ[DECISION]  # type: ignore[no-any-return]
    close_old_connections()  # Django closes old connections for each request, but only in its own threads
    try:
        return decide(_user_of_session(request.cookies), path_of(request.scope))
    finally:
        close_old_connections()


def decide(user: Any, path: str) -> Decision:
    """Return the dashboard's user for a Django user; only the name without a permission; or a redirect to the login."""
    if not user.is_authenticated:
        from starlette.responses import RedirectResponse

        return RedirectResponse(f"{_login_url()}?{urlencode({'next': path})}", 303)
    return user_of(user) or (user.get_username(), None)


def without_transaction(view: Any) -> Any:
    """Exempt a view from `ATOMIC_REQUESTS`: on SQLite, the ledger's own connection would wait for the transaction."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return view


@csrf_exempt  # type: ignore[untyped-decorator] # its forms have a token of their own
def dashboard_view(request: Any, page: str) -> Any:
    """Respond with a page of the dashboard, whose prefix is the URL without `page`."""
    body = request.body
    environ = {
        **request.META, "SCRIPT_NAME": _wsgi_text(request.path.removesuffix(page).rstrip("/")),
        "PATH_INFO": _wsgi_text(f"/{page}"), "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body),
        "wsgi.url_scheme": request.scheme, DECISION: decide(request.user, request.get_full_path()),
    }  # fmt: skip
    response = HttpResponse()

    def start_response(status: str, headers: list[tuple[str, str]], _error: Any = None) -> None:
        response.status_code = int(status.partition(" ")[0])
        for name, value in headers:
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            else:
                response[name] = value

    response.content = b"".join(_pages_of(celery_app(), redact_hook())(environ, start_response))
    return response


@lru_cache(maxsize=8)
def _pages_of(app: Any, redact: Any) -> Any:
    return onejob.wsgi_dashboard(app, authorize=authorize, redact=redact)


def _user_of_session(cookies: Any) -> Any:
    """Return the user of Django's session; an anonymous user without a session."""
    request: Any = HttpRequest()
    store = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
    request.session = store(cookies.get(settings.SESSION_COOKIE_NAME))
    return get_user(request)


def _login_url() -> str:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(settings.LOGIN_URL))


def _wsgi_text(text: str) -> str:
    """Return a text in WSGI's form: each character is a byte of its UTF-8."""
    return text.encode().decode("latin-1")
