"""Exceptions as JSON: how a failure is stored in the ledger, and raised again in `AsyncResult.get()`.

A stored failure is never imported or unpickled: it becomes an instance of its own class only if this process has loaded
that class already, and `JobFailedError` otherwise.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from kombu.utils import json

from onejob.errors import JobFailedError, clean

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
    """Return the exception in a text of `encode_failure`."""
    failure: dict[str, Any] = json.loads(text) if text else {"type": "unknown", "message": ""}
    error = _rebuild(failure)
    return error or JobFailedError(job_id, str(failure.get("type")), str(failure.get("message")))


def _args(error: BaseException) -> list[Any] | None:
    try:
        text = json.dumps(list(error.args))
    except Exception:  # noqa: BLE001 - any exception must be storable, whatever its arguments are
        return None
    return list(error.args) if len(text) <= MESSAGE_LIMIT and clean(text) == text else None


def _rebuild(failure: dict[str, Any]) -> BaseException | None:
    error_class: object = sys.modules.get(str(failure.get("module")))
    for part in str(failure.get("type")).split("."):
        error_class = getattr(error_class, part, None)
    if not (isinstance(error_class, type) and issubclass(error_class, Exception)):
        return None
    args = failure.get("args")
    try:
        return error_class(*args) if args is not None else error_class(failure.get("message"))
    except Exception:  # noqa: BLE001 - a class may reject these arguments; the caller gets a JobFailedError then
        return None
