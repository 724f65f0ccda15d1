"""Protection against cross-site request forgery: a form comes from this origin, and has the token of its browser.

Source: OWASP, Cross-Site Request Forgery Prevention: fetch metadata or Origin, and a double-submitted cookie.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from onejob.api.problems import Problem
from onejob.pages.cookies import set_cookie

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

COOKIE = "onejob_csrf"
FIELD = "csrf_token"
"""The field of every form with the token."""
TOKEN_BYTES = 32


def token_of(request: Request) -> str:
    """Return the token of a browser: that of its cookie, or a new one for `remember_token`."""
    token: str | None = getattr(request.state, "csrf_token", None) or request.cookies.get(COOKIE)
    request.state.csrf_token = token or secrets.token_urlsafe(TOKEN_BYTES)
    return str(request.state.csrf_token)


def remember_token(request: Request, response: Response) -> None:
    """Set the cookie of a browser that has none, if its page has a form."""
    token = getattr(request.state, "csrf_token", None)
    if token is not None and request.cookies.get(COOKIE) != token:
        set_cookie(response, request, COOKIE, token)


def check_form(request: Request, token: str | None) -> None:
    """Raise `Problem` unless a form was sent by a page of this dashboard, in the browser that got it."""
    if not _is_same_origin(request):
        raise Problem("forbidden", "the form was sent by another site")
    cookie = request.cookies.get(COOKIE, "")
    if not cookie or not hmac.compare_digest(cookie.encode(), (token or "").encode()):
        raise Problem("forbidden", "the form has expired, or cookies are blocked: reload the page and try again")


def _is_same_origin(request: Request) -> bool:
    """Return whether the browser says so: by Sec-Fetch-Site, which proxies do not affect, or else by Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    _, _, host = request.headers.get("origin", "").partition("://")
    return bool(host) and host == request.headers.get("host")
