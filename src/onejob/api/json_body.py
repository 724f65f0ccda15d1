"""The body of a request: bounded before it is read, and JSON that means the same to everybody."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from onejob.api.problems import Problem
from onejob.uniqueness.canonical_json import deeper_than

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import Request

BODY_LIMIT = 256 * 1024
DEPTH_LIMIT = 100
"""How deep a body may be nested. Arguments are bounded again, by `onejob_depth_limit`."""


async def read_body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """Return the body. Raises `Problem` for one that is too large, as soon as that is known."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    left = limit
    async for part in request.stream():
        left -= len(part)
        if left < 0:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def check_framing(request: Request) -> None:
    """Refuse a body that has two ends: what a proxy took for a part of it could be the next request here."""
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        detail = "the body has a length and a coding, of which a request may have one"
        raise Problem("bad-request", detail, headers={"connection": "close"})


def check_content_type(request: Request) -> None:
    """Refuse what a form on a foreign page could send."""
    kinds = {each.partition(";")[0].strip().lower() for each in request.headers.getlist("content-type")}
    if kinds != {"application/json"}:
        raise Problem("wrong-content-type", "send JSON, with the header content-type: application/json")


def parse(body: bytes) -> Any:
    """Return the value of a JSON text. Raises `Problem` for what two readers could understand differently."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
        if body.count(b"[") + body.count(b"{") > DEPTH_LIMIT and deeper_than(value, DEPTH_LIMIT):
            raise _too_deep()
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8
    except RecursionError:
        raise _too_deep() from None
    except UnicodeError as error:
        raise Problem("bad-json", f"the body is not UTF-8, or has half a character: {error.reason}") from None  # type: ignore[attr-defined] # the two that occur have one
    except ValueError as error:
        raise Problem("bad-json", f"the body is not JSON: {error}") from None
    return value


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has one name twice")
    return found


def _no_constant(name: str) -> None:
    msg = f"{name} is no number of JSON"
    raise ValueError(msg)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"the body may take {limit} bytes", headers={"connection": "close"})


def _too_deep() -> Problem:
    return Problem("bad-json", f"the body is nested deeper than {DEPTH_LIMIT} levels")
