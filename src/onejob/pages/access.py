"""Access to the pages: users by a hook of the app, by API keys or on this machine; cookies, forms and headers.

Source: OWASP, Cross-Site Request Forgery Prevention: fetch metadata or Origin, and a signed double-submitted cookie.
"""

import hmac
import inspect
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onejob.api.api_keys import Role
from onejob.api.checked_request import CheckedRequest
from onejob.api.problems import Problem
from onejob.errors import ConfigurationError, StoreError
from onejob.jobs.submitter import check_name
from onejob.ledger.ledger import Ledger
from onejob.pages.sessions import Sessions
from onejob.pages.signing import Signer

COOKIE = "onejob_session"
"""The cookie with a session, see `sessions.py`; it opens the dashboard, not the API."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the dashboard.

    `name` is recorded in the audit log. `role`: `read` sees everything, `operate` also cancels, redrives and deletes
    jobs, `edit` also redrives dead letters with other arguments.
    """

    name: str
    role: Role = Role.READ

    def __post_init__(self) -> None:
        """Raise `InvalidArgumentsError` for a name that cannot be recorded, `ConfigurationError` for a wrong role."""
        check_name("the name of a user", self.name)
        if self.role not in set(Role):
            raise ConfigurationError(f"authorize returned the role {self.role!r}; the roles are {', '.join(Role)}")
        object.__setattr__(self, "role", Role(self.role))

    def check(self, role: Role) -> None:
        """Raise `Problem` unless the user has this role."""
        if not self.role.includes(role):
            raise Problem("forbidden", f"{self.name!r} may only {self.role} here; this requires {role}")


Decision: TypeAlias = User | tuple[str, str | None] | Response | None
Authorize: TypeAlias = Callable[[Request], Decision | Awaitable[Decision]]
"""A hook that returns a request's user, or its name and role (None: no role); None to refuse it; or a response."""
LOCAL_USER = User("local", Role.OPERATE)
"""The user where neither a hook nor API keys decide: anybody on this machine."""


class Access:
    """Identifies the users of one dashboard."""

    def __init__(self, authorize: Authorize | None, sessions: Sessions | None) -> None:
        self._authorize = authorize
        self.sessions = sessions

    @property
    def is_local(self) -> bool:
        """Whether only requests of this machine are accepted, since nothing identifies their users."""
        return self._authorize is None and self.sessions is None

    async def identify(self, request: Request) -> User | Response:
        """Return the user of a request, or the response to send instead. Raises `Problem`."""
        if self._authorize is not None:
            return await self._ask_hook(request, self._authorize)
        if self.sessions is None:
            return LOCAL_USER
        session = read_cookie(request, COOKIE)
        if not session and request.query_params.get("format") != "json":
            return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        key = await run_in_threadpool(self.sessions.key_of, session)
        return User(key.name, key.role)

    async def is_valid(self, request: Request) -> bool:
        """Return whether the session of a request still lasts; True without API keys, and while the store is away."""
        if self.sessions is None:
            return True
        try:
            await run_in_threadpool(self.sessions.key_of, read_cookie(request, COOKIE))
        except Problem:
            return False
        except StoreError:
            return True
        return True

    async def _ask_hook(self, request: Request, authorize: Authorize) -> User | Response:
        if inspect.iscoroutinefunction(authorize):
            decision = await authorize(request)
        else:
            decision = await run_in_threadpool(authorize, request)
            if inspect.isawaitable(decision):
                decision = await decision
        if decision is None:
            raise Problem("forbidden", "you are not permitted to see this dashboard")
        if isinstance(decision, tuple) and len(decision) == 2 and decision[1] is None:  # noqa: PLR2004 - a pair
            check_name("the name of a user", decision[0])
            request.state.key_name = decision[0]
            raise Problem("forbidden", f"{decision[0]!r} is not permitted to see this dashboard")
        if isinstance(decision, tuple):
            return User(decision[0], decision[1])
        if isinstance(decision, User | Response):
            return decision
        msg = f"authorize must return a User, a name and a role, a response or None, not {type(decision).__name__}"
        raise TypeError(msg)


def read_cookies(request: Request, name: str) -> list[str]:
    """Return the values of all cookies of this name, as they were sent: several paths and domains may have one each."""
    parts = (part.strip() for value in request.headers.getlist("cookie") for part in value.split(";"))
    return [part.removeprefix(f"{name}=") for part in parts if part.startswith(f"{name}=")]


def read_cookie(request: Request, name: str) -> str:
    """Return the value of a cookie, or "". Raises `Problem` if cookies of this name have different values."""
    values = set(read_cookies(request, name))
    if len(values) > 1:
        detail = f"the browser has several cookies {name}: delete the cookies of this host and of the domains above it"
        raise Problem("bad-request", detail)
    return next(iter(values), "")


def set_cookie(response: Response, request: Request, name: str, value: str, *, seconds: int | None = None) -> None:
    """Set a cookie, for some seconds or until the browser is closed."""
    forwarded = request.headers.get("forwarded", "").lower().replace('"', "")
    is_secure = (  # also if only a proxy says that the browser uses HTTPS: a false header affects its own client
        request.url.scheme == "https"
        or request.headers.get("x-forwarded-proto", "").lower().startswith("https")
        or "proto=https" in forwarded
    )
    path = _path_of(request)
    response.set_cookie(name, value, seconds, path=path, secure=is_secure, httponly=True, samesite="strict")


def delete_cookie(response: Response, request: Request, name: str) -> None:
    """Delete a cookie."""
    response.delete_cookie(name, path=_path_of(request))


def _path_of(request: Request) -> str:
    """Return the path below which browsers send the cookies of this dashboard."""
    return request.scope.get("root_path", "") or "/"


FIELD_LIMIT = 2000
"""The maximum number of fields of a form."""
CONTENT_TYPE = "application/x-www-form-urlencoded"


class Form:
    """The fields of a form; fields of the same name keep their order.

    Raises `Problem` for text that no store can hold.
    """

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        if any("\x00" in text for field in fields for text in field):
            raise Problem("invalid-request", "the form has a NUL character")
        self._fields = fields

    def text(self, name: str) -> str:
        """Return the first value of a field; "" without one."""
        return next((value for field, value in self._fields if field == name), "")

    def texts(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for field, value in self._fields if field == name]

    def number(self, name: str) -> int:
        """Return the value of a field as a count; 0 without the field. Raises `Problem`."""
        text = self.text(name) or "0"
        if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - more than any ledger has
            raise Problem("invalid-request", f"the field {name} must be a number")
        return int(text)

    def described(self, *, without: str) -> list[tuple[str, str]]:
        """Return the fields for the audit log, without the token and empty ones; `filter` is the query of a list."""
        fields = [field for field in self._fields if field[0] not in {without, "filter", "back"} and field[1]]
        return fields + [(f"filter.{name}", value) for name, value in parse_qsl(self.text("filter"))]


async def read_form(request: Request) -> Form:
    """Read a form. Raises `Problem` for another content type, a body that is too large, or too many fields."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        raise Problem("wrong-content-type", f"send a form, with the header content-type: {CONTENT_TYPE}")
    checked = CheckedRequest(request.scope, request.receive)
    checked.check_framing()
    await checked.read_body()
    try:
        text = (checked.checked_body or b"").decode("ascii")
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELD_LIMIT, errors="strict")
    except ValueError:
        raise Problem("invalid-request", "the form cannot be read") from None
    return Form(fields)


CSRF_COOKIE = "onejob_csrf"
"""The cookie with a random text of the browser, which is no token: other ports and subdomains can set it."""
CSRF_FIELD = "csrf_token"
"""The field of every form with the token: a MAC over the user and the cookie."""
RANDOM_BYTES = 32
SECRET_ID = "dashboard-forms"  # noqa: S105 - the name of the secret


class Tokens(Signer):
    """The tokens of forms: a token of one process is valid in all processes."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        super().__init__(ledger, SECRET_ID)

    def token_of(self, request: Request, user: str) -> str:
        """Return the token of a browser and a user; "", with which no form is accepted, if the store is unavailable.

        `user`: the name of the user, "" before the login.
        """
        cookie = next(filter(None, read_cookies(request, CSRF_COOKIE)), None) or secrets.token_urlsafe(RANDOM_BYTES)
        request.state.csrf_cookie = cookie
        try:
            return self.sign(user, cookie)
        except StoreError:
            return ""

    def check(self, request: Request, token: str, user: str) -> None:
        """Raise `Problem` unless a form was sent by a page of this dashboard, by the same browser and user."""
        # The browser names the origin by Sec-Fetch-Site, which proxies do not affect, or else by Origin.
        host = request.headers.get("origin", "").partition("://")[2]
        is_same_host = bool(host) and host == request.headers.get("host")
        if request.headers.get("sec-fetch-site", "same-origin" if is_same_host else "") != "same-origin":
            raise Problem("forbidden", "the form was sent by another site")
        tokens = [self.sign(user, cookie) for cookie in filter(None, read_cookies(request, CSRF_COOKIE)[:5])]
        if not any(hmac.compare_digest(each.encode(), token.encode()) for each in tokens):
            raise Problem("forbidden", "the form has expired, or cookies are blocked: reload the page and try again")


def remember_cookie(request: Request, response: Response) -> None:
    """Set the cookie of a browser without it, if the page has a form."""
    cookie = getattr(request.state, "csrf_cookie", None)
    if cookie is not None and cookie not in read_cookies(request, CSRF_COOKIE):
        set_cookie(response, request, CSRF_COOKIE, cookie)


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy: nothing is loaded from elsewhere, and no script or style is inline."""
PAGE_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""The headers of pages. The referrer is sent, since a form without a referrer has no `Origin` to check."""
