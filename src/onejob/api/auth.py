"""What stands before every endpoint: who asks, whether they may, and whether the body can be trusted to parse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute

from onejob.api.api_keys import Role
from onejob.api.json_body import check_content_type, check_framing, parse, read_body
from onejob.api.problems import Problem, problem_of, with_headers
from onejob.api.query_parameters import check_query
from onejob.api.quotas import NO_QUOTAS
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from starlette.responses import Response

    from onejob.api.api_keys import Key, KeyFile
    from onejob.api.quotas import Quotas

F = TypeVar("F", bound="Callable[..., Any]")
Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"
CHALLENGE = {"www-authenticate": 'Bearer realm="onejob"'}


def needs(role: Role | None) -> Callable[[F], F]:
    """Say which role an endpoint needs; None: anybody may ask."""

    def mark(endpoint: F) -> F:
        endpoint.needs = role  # type: ignore[attr-defined] # functions take attributes
        return endpoint

    return mark


def handled_by(handler: Handler) -> Callable[[F], F]:
    """Have `handler` answer the requests of an endpoint, which does the same, where FastAPI has nothing to add.

    FastAPI's own way from a request to its arguments takes longer than all that is done for a job.
    """

    def mark(endpoint: F) -> F:
        endpoint.handler = handler  # type: ignore[attr-defined] # functions take attributes
        return endpoint

    return mark


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the name of the key, "" where there are no keys, and how much the caller may ask for."""

    name: str
    quotas: Quotas


class CheckedRequest(Request):
    """A request whose body has been read and parsed by our rules."""

    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._checked = body

    async def body(self) -> bytes:
        """Return the body."""
        return self._checked

    async def json(self) -> Any:
        """Return the body's value. Raises `Problem`."""
        return parse(self._checked)


def guarded(keys: KeyFile | None, quotas: Quotas = NO_QUOTAS, *, alone: bool = False) -> type[APIRoute]:
    """Return the class of routes that let in whoever has one of these keys.

    When there is no key file, everybody is let in, as one caller with these quotas. `alone`: no other app can have put
    dependencies before the routes, so those of `answered_by` need not go through FastAPI.
    """
    everybody = Caller("", quotas)

    class Guarded(APIRoute):
        """A route that tells every error as a problem, whatever app it is mounted in."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the endpoint's handler with the guard before it."""
            direct = getattr(self.endpoint, "handler", None) if alone else None
            handler: Handler = direct or super().get_route_handler()
            role = getattr(self.endpoint, "needs", Role.OPERATE)

            async def guard(request: Request) -> Response:
                try:
                    check_framing(request)
                    request.state.caller = admitted(keys, role, request) or everybody
                    check_query(request, self)
                    response = await handler(await _checked(request))
                except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told in one form
                    return problem_of(error).response()
                response.raw_headers = with_headers(response.raw_headers)
                return response

            return guard

    return Guarded


def admitted(keys: KeyFile | None, role: Role | None, request: Request) -> Caller | None:
    """Return who asks, None when no key is needed. Raises `Problem` unless they may."""
    if keys is None or role is None:
        return None
    said = request.headers.getlist("authorization")
    key = _holder(keys, said[0] if len(said) == 1 else "")  # of two, a proxy may have looked at the other one
    if not key.role.includes(role):
        detail = f"the key {key.name!r} has the role {key.role}, this takes {role}"
        raise Problem("forbidden", detail)
    return Caller(key.name, key.quotas)


def _holder(keys: KeyFile, header: str) -> Key:
    scheme, _, text = header.partition(" ")
    try:
        key = keys.holder(text.strip()) if scheme.lower() == "bearer" else None
    except ConfigurationError as error:
        raise Problem("keys-unreadable", "the server cannot read its API keys") from error
    if key is None:
        raise Problem("unauthorized", "send an API key, with the header authorization: Bearer KEY", headers=CHALLENGE)
    return key


async def _checked(request: Request) -> Request:
    if request.method != "POST":
        return request
    check_content_type(request)
    return CheckedRequest(request, await read_body(request))
