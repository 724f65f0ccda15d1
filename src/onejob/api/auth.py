"""Checks before every endpoint: API key, role, framing, content type, size of the body and query parameters."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeAlias

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onejob.api.api_keys import Key, KeyFile, Role
from onejob.api.audit import DONE, RequestAudit, fields_of_json
from onejob.api.callers import Caller, caller_in_context, set_caller
from onejob.api.checked_request import CheckedRequest, QueryCheck
from onejob.api.fetch_metadata import foreign_site
from onejob.api.problems import Problem, add_security_headers, problem_from, wrong_method
from onejob.errors import ConfigurationError
from onejob.jobs.submitter import NO_QUOTAS, Quotas
from onejob.jobs.timestamps import format_timestamp
from onejob.observability.request_origin import LOCAL_NAMES, is_loopback, without_port

Handler: TypeAlias = Callable[[CheckedRequest], Awaitable[Response]]
FORWARDING = (
    b"x-forwarded-", b"forwarded", b"x-real-ip", b"x-scheme", b"x-original-", b"via", b"client-ip", b"true-client-ip",
    b"x-client-ip", b"x-cluster-client-ip", b"cdn-loop", b"cf-", b"fastly-client-ip", b"fly-client-ip", b"tailscale-",
    b"x-envoy-", b"x-azure-", b"x-amzn-trace-id", b"x-cloud-trace-context",
)  # fmt: skip
"""The beginnings of headers that proxies add: a request with such a header comes from another machine."""
HAVE_BODIES = frozenset({"POST", "PUT"})
"""The methods whose requests have JSON bodies."""
ACCEPTED = 204
"""The status by which dependencies accept a request again; no refusal has this status."""
SEND_KEY = "send an API key, with the header authorization: Bearer KEY"
CHALLENGE = {"www-authenticate": 'Bearer realm="onejob"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The authentication of one API's requests: by keys; without keys everybody is accepted, or only this machine."""

    keys: KeyFile | None = None
    quotas: Quotas = NO_QUOTAS
    """The quotas of the context's submitter, if there are no keys."""
    is_local: bool = False
    """Whether only requests from this machine are accepted."""
    standalone: bool = False
    """Whether no other app can have added dependencies, so that requests for a direct route may bypass FastAPI."""
    audit: RequestAudit | None = None


class GuardedRoute(APIRoute):
    """A route that checks each request, and reports every error as a problem, in whichever app it is mounted."""

    guard: ClassVar[Guard]
    allowed: ClassVar[defaultdict[str, set[str]]]
    """The methods of each path of the router; each route has one method."""
    role: ClassVar[Role | None] = Role.OPERATE
    handler: ClassVar[Handler | None] = None
    direct: Handler | None = None
    """A handler that is equivalent to the route, checks included; None: only FastAPI may call the route."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, or refuse a method that no route of this path has."""
        if scope["method"] in (self.methods or ()):
            await super().handle(scope, receive, send)
        else:
            await wrong_method(self.allowed[self.path]).response()(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint's handler, preceded by the checks."""
        self.allowed[self.path] |= self.methods or set()
        guard, role, check_query = self.guard, self.role, QueryCheck(self)
        direct = type(self).handler if guard.standalone else None
        handler: Handler = direct or super().get_route_handler()
        action = str(self.endpoint.__name__)

        async def respond(request: CheckedRequest) -> Response:
            try:
                if guard.is_local:
                    check_local(request.scope)
                request.check_framing()
                request.state.authenticate = partial(authenticate, guard.keys, role, request)
                set_caller(request, request.state.authenticate() or caller_in_context(guard.quotas))
                if request.scope.get("query_string"):
                    check_query(request)
                if request.method in HAVE_BODIES:
                    request.check_content_type()
                    await request.read_body()
                response = await handler(request)
            except Exception as error:  # noqa: BLE001 - every error becomes a problem
                problem = problem_from(error)
                if guard.audit is not None:
                    await guard.audit.record(request, action, role, outcome=problem.slug)
                return problem.response()
            if guard.audit is not None:
                fields = fields_of_json(request.checked_body)
                await guard.audit.record(request, action, role, outcome=DONE, fields=fields)
            response.raw_headers = add_security_headers(response.raw_headers)
            return response

        async def handle(request: Request) -> Response:
            return await respond(CheckedRequest(request.scope, request.receive))

        self.direct = respond if direct else None
        return handle


def guarded(guard: Guard) -> type[GuardedRoute]:
    """Return the class of the routes of one router, which checks requests by `guard`."""
    return type("GuardedRoute", (GuardedRoute,), {"guard": guard, "allowed": defaultdict(set)})


def route_for(base: type[APIRoute], role: Role | None, handler: Handler | None = None) -> type[APIRoute]:
    """Return the class of a route that requires a role; None: no API key is required. The default is `operate`.

    `handler` is equivalent to the endpoint, and handles requests to which FastAPI adds nothing. FastAPI takes longer to
    turn a request into arguments than the rest of a submission takes.
    """
    return type("GuardedRoute", (base,), {"role": role, "handler": handler and staticmethod(handler)})


def authenticate(keys: KeyFile | None, role: Role | None, request: CheckedRequest) -> Caller | None:
    """Return the caller; None if no API key is required. Raises `Problem` without a valid key of the role.

    Each call reads a key file that has changed, so that a repeated call refuses a key that was revoked meanwhile.
    """
    if keys is None or role is None:
        return None
    headers = request.texts(b"authorization")
    scheme, _, text = (headers[0] if len(headers) == 1 else "").partition(" ")  # a proxy may have checked the other one
    key = find_key(keys.find, text.strip() if scheme.lower() == "bearer" else "")
    request.state.key_name = key.name
    check_expiry(key)
    if not key.role.includes(role):
        raise Problem("forbidden", f"the API key {key.name!r} has the role {key.role}, this endpoint requires {role}")
    return key.caller


def find_key(find: Callable[[str], Key | None], text: str, hint: str = SEND_KEY) -> Key:
    """Return the key that `find` finds. Raises `Problem`, with the hint, for an unknown key."""
    try:
        key = find(text)
    except ConfigurationError as error:
        raise Problem("keys-unreadable", "the server cannot read its API keys") from error
    if key is None:
        raise Problem("unauthorized", hint, headers=CHALLENGE)
    return key


def check_expiry(key: Key) -> None:
    """Raise `Problem` for a key that has expired."""
    if key.expires_at is not None and key.expired:
        detail = f"the API key {key.name!r} expired at {format_timestamp(key.expires_at)}"
        raise Problem("unauthorized", detail, headers=CHALLENGE)


def repeated_check(dependencies: Sequence[Any]) -> Callable[[Request], Awaitable[bool]]:
    """Return a function that asks dependencies of FastAPI whether they still accept the request of an open stream.

    The dependencies may set the caller of the request anew. An exception of a dependency refuses the request.
    """

    async def accept() -> Response:
        return Response(status_code=ACCEPTED)

    check = APIRoute("/", accept, dependencies=dependencies).app

    async def is_accepted(request: Request) -> bool:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await check(dict(request.scope), request.receive, send)
        except Exception as error:  # noqa: BLE001 - the dependencies are the app's
            problem_from(error)  # logs an unexpected error
        return bool(sent) and sent[0].get("status") == ACCEPTED

    return is_accepted


def check_local(scope: Scope) -> None:
    """Raise `Problem` unless a request is from this machine, through no proxy, to a local name: no DNS rebinding.

    A request from a page of another origin is refused, too.
    """
    headers = scope["headers"]
    client = (scope.get("client") or ("",))[0]
    reason = _foreign_because(client, tuple(value for name, value in headers if name == b"host"))
    proxied = next((name.decode("latin-1") for name, _ in headers if name.startswith(FORWARDING)), None)
    if proxied is not None:  # the proxy explains the foreign host, too
        reason = f"it has the header {proxied}, as a proxy adds it"
    elif not reason and (site := foreign_site(scope.get("method", ""), headers)):
        reason = f"a page of another origin has sent it (sec-fetch-site: {site})"
    if reason:
        raise Problem("forbidden", f"{LOCAL_ONLY} This request is refused because {reason}. {LET_OTHERS_IN}")


LOCAL_ONLY = (
    "Nothing here says who may call, so only requests from this machine are answered, to localhost or 127.0.0.1, "
    "through no proxy."
)
LET_OTHERS_IN = (
    "To let others in, give onejob.dashboard(...) authorize= or keys=, onejob.api.router(...) caller=, dependencies= "
    "or keys=, and `onejob serve` --keys."
)


@lru_cache(maxsize=256)
def _foreign_because(client: str, hosts: tuple[bytes, ...]) -> str:
    """Return the reason why a request may come from another machine; "" if it comes from this one."""
    if not is_loopback(client):
        return f"it is from {client or 'an unknown address'}"
    names = {without_port(host.decode("latin-1")) for host in hosts}
    others = sorted(names - LOCAL_NAMES)
    if others:
        return f"its header host is {others[0][:100]!r}"
    return "" if names else "it has no header host"


TELEMETRY = "fastapi.telemetry"
"""The key in a request's scope that FastAPI's tracing sets; its router then reports the route to the tracer."""


class DirectRoutes:
    """Passes a request for a direct route to the route's handler, others to the app; the app would answer the same.

    FastAPI takes longer to find a route, and to prepare a call of its endpoint, than the rest of a submission takes.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = [(each, each.direct) for each in routes if isinstance(each, GuardedRoute) and each.direct]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route, or the app."""
        if scope["type"] == "http" and TELEMETRY not in scope:
            for route, handler in self._routes:
                match, child_scope = route.matches(scope)
                if match is Match.FULL:
                    scope.update(child_scope)
                    response = await handler(CheckedRequest(scope, receive))
                    await response(scope, receive, send)
                    return
        await self._app(scope, receive, send)
