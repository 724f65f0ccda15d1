"""Protection against cross-site request forgery: a form comes from this origin, and has the token of its browser.

Source: OWASP, Cross-Site Request Forgery Prevention: fetch metadata or Origin, and a signed double-submitted cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING

from onejob.api.problems import Problem
from onejob.errors import StoreError
from onejob.pages.cookies import read_cookies, set_cookie

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from onejob.ledger.ledger import Ledger
    from onejob.pages.access import User

COOKIE = "onejob_csrf"
"""The cookie with a random text of the browser, which is no token: other ports and subdomains can set it."""
FIELD = "csrf_token"
"""The field of every form with the token: a MAC over the user and the cookie."""
RANDOM_BYTES = 32
SECRET_ID = "dashboard-forms"  # noqa: S105 - the name of the secret
READ_AGAIN_AFTER = 3600.0
"""After so many seconds the secret is read again, which extends its life."""
KEEP_SECRET_FOR = 90 * 86400.0


class Tokens:
    """The tokens of forms: those of one process are valid in all, since the ledger keeps their secret."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._secret = ""
        self._read_at = float("-inf")

    def token_of(self, request: Request, user: User | None) -> str:
        """Return the token of a browser and a user; "", which no form is accepted with, if the store is away."""
        cookie = next(filter(None, read_cookies(request, COOKIE)), None) or secrets.token_urlsafe(RANDOM_BYTES)
        request.state.csrf_cookie = cookie
        try:
            return self._sign(cookie, user)
        except StoreError:
            return ""

    def check(self, request: Request, token: str, user: User | None) -> None:
        """Raise `Problem` unless a form was sent by a page of this dashboard, in the browser and to the user of it."""
        if not _is_same_origin(request):
            raise Problem("forbidden", "the form was sent by another site")
        tokens = [self._sign(cookie, user) for cookie in filter(None, read_cookies(request, COOKIE)[:5])]
        if not any(hmac.compare_digest(each.encode(), token.encode()) for each in tokens):
            raise Problem("forbidden", "the form has expired, or cookies are blocked: reload the page and try again")

    def _sign(self, cookie: str, user: User | None) -> str:
        """Return the token that belongs to a cookie. Raises `StoreError`."""
        if time.monotonic() > self._read_at + READ_AGAIN_AFTER:
            new = secrets.token_hex(RANDOM_BYTES)
            self._secret = self._ledger.keep_event(SECRET_ID, new, keep_for=KEEP_SECRET_FOR) or new
            self._read_at = time.monotonic()
        text = f"{'' if user is None else user.name}\0{cookie}"
        return hmac.new(self._secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def remember_cookie(request: Request, response: Response) -> None:
    """Set the cookie of a browser that has none, if its page has a form."""
    cookie = getattr(request.state, "csrf_cookie", None)
    if cookie is not None and cookie not in read_cookies(request, COOKIE):
        set_cookie(response, request, COOKIE, cookie)


def _is_same_origin(request: Request) -> bool:
    """Return whether the browser says so: by Sec-Fetch-Site, which proxies do not affect, or else by Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    _, _, host = request.headers.get("origin", "").partition("://")
    return bool(host) and host == request.headers.get("host")
