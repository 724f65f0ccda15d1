"""Exceptions as data: how a failure is kept in the ledger, and raised again for a caller that waits.

A kept failure is never imported or unpickled: it becomes its own class again only when this process has loaded that
class already, and `JobFailedError` otherwise.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from kombu.utils import json

from onejob.errors import JobFailedError

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000


def encode_failure(error: BaseException) -> str:
    """Return the JSON of an exception: module, type, message, args (when JSON has them) and traceback."""
    text = "".join(traceback.format_exception(error))
    return str(
        json.dumps(
            {
                "module": type(error).__module__,
                "type": type(error).__qualname__,
                "message": clean(str(error))[:MESSAGE_LIMIT],
                "args": _args(error),
                "traceback": clean(text)[-TRACEBACK_LIMIT:],
            }
        )
    )


def decode_failure(job_id: str, text: str | None) -> BaseException:
    """Return the exception that `encode_failure` kept."""
    kept: dict[str, Any] = json.loads(text) if text else {"type": "unknown", "message": ""}
    error = _rebuild(kept)
    return error or JobFailedError(job_id, str(kept.get("type")), str(kept.get("message")))


def describe(error: BaseException) -> str:
    """Return one line about an exception."""
    return clean(f"{type(error).__name__}: {error}").replace("\n", " ")[:200]


def clean(text: str) -> str:
    """Return text that every store can hold: no NUL, no lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _args(error: BaseException) -> list[Any] | None:
    try:
        text = json.dumps(list(error.args))
    except Exception:  # noqa: BLE001 - whatever an exception carries, its failure must be kept
        return None
    return list(error.args) if len(text) <= MESSAGE_LIMIT and clean(text) == text else None


def _rebuild(kept: dict[str, Any]) -> BaseException | None:
    found: object = sys.modules.get(str(kept.get("module")))
    for part in str(kept.get("type")).split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    args = kept.get("args")
    try:
        return found(*args) if args is not None else found(kept.get("message"))
    except Exception:  # noqa: BLE001 - a class may refuse what it was given; the caller still gets a JobFailedError
        return None
