"""A request whose headers and body are checked before an endpoint handles it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from onejob.api.json_body import BODY_LIMIT, INLINE_BYTES, parse_json
from onejob.api.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope


COOKIE_LIMIT = 8 * 1024
"""The bytes of all cookies of a request at most: as many as usual proxies accept in a header."""
BACKSLASH_LIMIT = 256
"""The backslashes in them at most: Python before 3.11.10 and 3.12.6 searches the rest of a cookie for each one."""


class CheckedRequest(Request):
    """A request whose body is read within a limit, and parsed strictly.

    `header_values`: the values of its headers by name, since every check looks for some.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self.checked_body: bytes | None = None
        """The body; None before it was read."""
        self.header_values: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.header_values.setdefault(name, []).append(value)

    def texts(self, name: bytes) -> list[str]:
        """Return the values of all headers of this name."""
        return [value.decode("latin-1") for value in self.header_values.get(name, ())]

    async def body(self) -> bytes:
        """Return the body."""
        return await super().body() if self.checked_body is None else self.checked_body

    async def json(self) -> Any:
        """Return the parsed body. Raises `Problem`."""
        body = await self.body()
        return parse_json(body) if len(body) <= INLINE_BYTES else await run_in_threadpool(parse_json, body)

    async def read_body(self, limit: int = BODY_LIMIT) -> None:
        """Read the body. Raises `Problem` for one of more than `limit` bytes, without reading the rest of it."""
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
        """Refuse both Content-Length and Transfer-Encoding, which allows request smuggling (RFC 9112, 6.1).

        And hostile cookies, which FastAPI would parse.
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
