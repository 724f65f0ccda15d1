"""A request whose query, headers and body are checked before an endpoint handles it.

Bodies are limited in size and depth, and parsed strictly, as unambiguous JSON. Undeclared query
parameters are refused, since a mistyped filter would silently return everything.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

from anyio import CapacityLimiter, to_thread
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import APIKeyQuery
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from onejob.api.problems import Problem
from onejob.celery.messages.payload import levels_of
from onejob.concurrency.batching import PerEventLoop

BODY_LIMIT = 256 * 1024
"""The maximum size of a body, in bytes."""
INLINE_BYTES = 16 * 1024
"""The size of a body, in bytes, up to which it is parsed in the event loop. A larger one is parsed in a thread."""
DEPTH_LIMIT = 100
"""The maximum nesting depth of a body. `TextLimits.depth` limits that of the arguments in it."""
VALUE_LIMIT = 20_000
"""The maximum number of values in a body, since each one costs far more time than its bytes do."""
PARSED_AT_ONCE = 2
"""The number of larger bodies that are parsed at once, since all threads share one interpreter."""
_parsers = PerEventLoop(lambda: CapacityLimiter(PARSED_AT_ONCE))


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text. Raises `Problem` for a text that two parsers could interpret differently."""
    if len(body) >= 2 * VALUE_LIMIT:
        _check_separators(body)
    try:
        value = _decoder.decode(body.decode())
        containers = body.count(b"[") + body.count(b"{")
        if containers > DEPTH_LIMIT or containers + body.count(b",") >= VALUE_LIMIT:
            _check_shape(value)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8
    except RecursionError:
        raise _too_deep() from None
    except UnicodeError as error:
        raise Problem("bad-json", f"the body is not UTF-8, or has a lone surrogate: {error.reason}") from None  # type: ignore[attr-defined] # both subclasses that occur have it
    except ValueError as error:
        raise Problem("bad-json", f"the body is not JSON: {error}") from None
    return value


_STRING = re.compile(rb'"(?:[^"\\]|\\.?)*"?', re.DOTALL)


def _check_separators(body: bytes) -> None:
    """Raise `Problem` for a body with more than twice `VALUE_LIMIT` marks: it has too many values to parse quickly.

    A mark is a comma or the beginning of a container: at most one stands before each value, and a container has one
    more.
    """
    bare = _STRING.sub(b"", body)
    if sum(map(bare.count, (b",", b"[", b"{"))) >= 2 * VALUE_LIMIT:
        raise _too_many()


def _check_shape(value: Any) -> None:
    """Raise `Problem` for a value that is too deep, or has too many values in it."""
    count = 0
    for depth, level in enumerate(levels_of(value)):
        count += len(level)
        if depth > DEPTH_LIMIT:
            raise _too_deep()
        if count > VALUE_LIMIT:
            raise _too_many()


def _unique_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique_object, parse_constant=_refuse_constant, parse_float=_finite_float
)


def _too_many() -> Problem:
    detail = (
        f"the body has more than {VALUE_LIMIT} JSON values, counting those in arrays and objects: store the data "
        "elsewhere and pass a reference, or pass it as one text"
    )
    return Problem("too-large", detail)


def _too_deep() -> Problem:
    return Problem("bad-json", f"the body is nested deeper than {DEPTH_LIMIT} levels")


COOKIE_LIMIT = 8 * 1024
"""The maximum bytes of all cookies of a request: as many as usual proxies accept in a header."""
BACKSLASH_LIMIT = 256
"""The maximum backslashes in cookies: Python before 3.11.10 and 3.12.6 searches the rest of a cookie for each."""


class CheckedRequest(Request):
    """A request whose body is read within a limit, and parsed strictly.

    `header_values`: the values of its headers by name, which every check looks up.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self.checked_body: bytes | None = None
        """The body; None before it was read."""
        self.header_values: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.header_values.setdefault(name, []).append(value)

    def texts(self, name: bytes) -> list[str]:
        """Return the values of all headers of this name, without white space around them (RFC 9110, section 5.5)."""
        return [value.decode("latin-1").strip(" \t") for value in self.header_values.get(name, ())]

    async def body(self) -> bytes:
        """Return the body."""
        return await super().body() if self.checked_body is None else self.checked_body

    async def json(self) -> Any:
        """Return the parsed body. Raises `Problem`."""
        body = await self.body()
        if len(body) <= INLINE_BYTES:
            return parse_json(body)
        return await to_thread.run_sync(parse_json, body, limiter=_parsers.current())

    async def read_body(self, limit: int = BODY_LIMIT) -> None:
        """Read the body. Raises `Problem` for more than `limit` bytes, without reading the rest."""
        length = next(iter(self.texts(b"content-length")), "")
        if length.isdecimal() and int(length[:20]) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        remaining, more = limit, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, more = message.get("body", b""), message.get("more_body", False)
            remaining -= len(chunk)
            if remaining < 0:
                raise _too_large(limit)
            chunks.append(chunk)
        self.checked_body = b"".join(chunks)

    def check_framing(self) -> None:
        """Refuse Content-Length together with Transfer-Encoding, which allows request smuggling (RFC 9112, 6.1).

        Hostile cookies are refused here, too, since FastAPI would parse them.
        """
        if b"cookie" in self.header_values:
            check_cookies(self.header_values[b"cookie"])
        if b"content-length" in self.header_values and b"transfer-encoding" in self.header_values:
            detail = "a request must not have both content-length and transfer-encoding"
            raise Problem("bad-request", detail, headers={"connection": "close"})

    def check_content_type(self) -> None:
        """Refuse a content type that an HTML form of another site can send without a CORS preflight."""
        values = self.header_values.get(b"content-type", ())
        if not values or not all(map(_is_json, values)):
            raise Problem("wrong-content-type", "send JSON, with the header content-type: application/json")


def check_cookies(values: list[bytes]) -> None:
    """Raise `Problem` for cookies that Python's `http.cookies` may take seconds to parse (CVE-2024-7592)."""
    if sum(map(len, values)) > COOKIE_LIMIT or sum(value.count(b"\\") for value in values) > BACKSLASH_LIMIT:
        detail = f"the cookies have more than {COOKIE_LIMIT} bytes, or {BACKSLASH_LIMIT} backslashes"
        raise Problem("bad-request", detail)


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    return content_type.decode("latin-1").partition(";")[0].strip().lower() == "application/json"


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"the body has more than {limit} bytes", headers={"connection": "close"})


PARAMETER_LIMIT = 50
"""The maximum query parameters of a request, since each unknown name is compared with all declared names."""
COLLECTIONS = (list, tuple, set, frozenset)
NAME_LIMIT = 100
"""The number of characters of an unknown name that are compared and reported."""


class QueryCheck:
    """The check of the query parameters of one route."""

    def __init__(self, route: APIRoute) -> None:
        self._route = route
        self._dependant: Dependant | None = None
        self._declared: Mapping[str, bool] = {}

    def __call__(self, request: Request) -> None:
        """Raise `RequestValidationError` for an undeclared parameter, or a repeated parameter that is not a list."""
        if request.scope["query_string"].count(b"&") >= PARAMETER_LIMIT:
            raise Problem("invalid-request", f"a request must not have more than {PARAMETER_LIMIT} query parameters")
        # The dependant of the app which the router is mounted in includes the dependencies of the app.
        mounted = request.scope.get("fastapi", {}).get("effective_route_context")
        dependant: Dependant = (mounted or self._route).dependant
        if dependant is not self._dependant:  # that app has changed
            self._declared, self._dependant = _declared_parameters(dependant), dependant
        declared = self._declared
        unknown: list[tuple[str, str]] = []
        repeated: list[tuple[str, str]] = []
        for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
            if name not in declared:
                nearest = get_close_matches(name[:NAME_LIMIT], declared, 1)
                taken = f"this path takes {', '.join(sorted(declared)) or 'none'}"
                hint = f"did you mean {nearest[0]!r}?" if nearest else taken
                unknown.append((name, f"unknown query parameter {name[:NAME_LIMIT]!r}: {hint}"))
            elif count > 1 and not declared[name]:
                repeated.append((name, f"the query parameter {name!r} is given {count} times, but takes one value"))
        if invalid := unknown + repeated:
            raise RequestValidationError(
                [{"loc": ("query", name[:NAME_LIMIT]), "msg": msg, "type": "query_parameter"} for name, msg in invalid]
            )


def _without_metadata(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _declared_parameters(dependant: Dependant) -> dict[str, bool]:
    """Return the declared query parameters by name, each with whether it may be repeated."""
    declared: dict[str, bool] = {}
    for parameter in dependant.query_params:
        hint = parameter.field_info.annotation
        fields: Mapping[str, FieldInfo] = {parameter.alias: parameter.field_info}
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            fields = hint.model_fields
        for name, each in fields.items():
            parts = map(_without_metadata, (each.annotation, *get_args(each.annotation)))
            types = (get_origin(part) or part for part in parts)
            declared[name] = any(isinstance(kind, type) and issubclass(kind, COLLECTIONS) for kind in types)
    if isinstance(dependant.call, APIKeyQuery):  # of the app
        declared[dependant.call.model.name] = False
    for dependency in dependant.dependencies:
        declared |= _declared_parameters(dependency)
    return declared
