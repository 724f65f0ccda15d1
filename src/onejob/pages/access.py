"""Who may see the pages, and who may act on them: a hook of the app, or the API keys with a cookie, or this machine."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onejob.api.api_keys import KeyFile, Role, session_of
from onejob.api.auth import check_expiry, find_key
from onejob.api.problems import Problem
from onejob.errors import ConfigurationError
from onejob.jobs.submitter import check_name
from onejob.pages.security import read_cookie

COOKIE = "onejob_session"
"""Made from an API key, which cannot be computed from it: it opens the dashboard, and not the API."""
SESSION_SECONDS = 12 * 3600
"""How long a browser keeps its session, in seconds. A key that is revoked or expires ends it at once."""


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


Decision: TypeAlias = "User | tuple[str, str | None] | Response | None"
Authorize: TypeAlias = "Callable[[Request], Decision | Awaitable[Decision]]"
"""Decides about a request: a user, or its name and role, None for no role; None refuses it; a response is sent."""
LOCAL_USER = User("local", Role.OPERATE)
"""The user where neither a hook nor API keys decide: anybody on this machine."""


class Access:
    """Identifies the users of one dashboard."""

    def __init__(self, authorize: Authorize | None, keys: str | os.PathLike[str] | None) -> None:
        if authorize is not None and keys is not None:
            raise ConfigurationError("give authorize= or keys=, not both: each identifies the user")
        self._authorize = authorize
        self.keys = None if keys is None else KeyFile(keys)
        if self.keys is not None:
            self.keys.read()

    @property
    def is_local(self) -> bool:
        """Whether only requests of this machine are accepted, since nothing identifies their users."""
        return self._authorize is None and self.keys is None

    async def identify(self, request: Request) -> User | Response:
        """Return the user of a request, or the response to send instead. Raises `Problem`."""
        if self._authorize is not None:
            return await self._ask_hook(request, self._authorize)
        if self.keys is None:
            return LOCAL_USER
        session = read_cookie(request, COOKIE)
        if not session and request.query_params.get("format") != "json":
            return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        return self._user_of_session(session)

    def is_valid(self, request: Request) -> bool:
        """Return whether the API key of a session is still valid; True without API keys. Reads a file at most."""
        try:
            return self.keys is None or bool(self._user_of_session(read_cookie(request, COOKIE)))
        except Problem:
            return False

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

    def user_of(self, text: str) -> User:
        """Return the user of an API key. Raises `Problem` for one that is unknown, expired or limited to some jobs."""
        return self._user_of_session(session_of(text.strip()))

    def _user_of_session(self, session: str) -> User:
        if self.keys is None:
            raise Problem("not-found", "this dashboard has no API keys")
        hint = "there is no such API key, or it was revoked: log in with another one"
        key = find_key(self.keys.find_session, session, hint)
        check_expiry(key)
        if key.own_jobs or key.tasks is not None:
            raise Problem("forbidden", f"the API key {key.name!r} is limited to some jobs, and the dashboard shows all")
        return User(key.name, key.role)
