"""Request bodies: limited in size and depth, and parsed strictly, as unambiguous JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from onejob.api.problems import Problem
from onejob.uniqueness.canonical_json import deeper_than

if TYPE_CHECKING:
    from collections.abc import Sequence

BODY_LIMIT = 256 * 1024
"""The maximum size of a body, in bytes."""
INLINE_BYTES = 16 * 1024
"""The size of a body, in bytes, up to which it is parsed in the event loop. A larger one is parsed in a thread."""
DEPTH_LIMIT = 100
"""The maximum nesting depth of a body. `onejob_depth_limit` limits that of the arguments in it."""


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text. Raises `Problem` for a text that two parsers could interpret differently."""
    try:
        value = _decoder.decode(body.decode())
        if body.count(b"[") + body.count(b"{") > DEPTH_LIMIT and deeper_than(value, DEPTH_LIMIT):
            raise _too_deep()
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8
    except RecursionError:
        raise _too_deep() from None
    except UnicodeError as error:
        raise Problem("bad-json", f"the body is not UTF-8, or has a lone surrogate: {error.reason}") from None  # type: ignore[attr-defined] # both subclasses that occur have it
    except ValueError as error:
        raise Problem("bad-json", f"the body is not JSON: {error}") from None
    return value


def _unique_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return value


def _refuse_constant(name: str) -> None:
    msg = f"{name} is not a JSON number"
    raise ValueError(msg)


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique_object, parse_constant=_refuse_constant, parse_float=_finite_float
)


def _too_deep() -> Problem:
    return Problem("bad-json", f"the body is nested deeper than {DEPTH_LIMIT} levels")
