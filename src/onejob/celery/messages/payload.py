"""Writes and reads the JSON of the ledger: the call of a job with its publish options, and the failure of a run.

A stored failure is never imported or unpickled: it becomes an instance of its own class only if this process has loaded
that class already, and `JobFailedError` otherwise.
"""

from __future__ import annotations

import json as plain_json
import re
import sys
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from json import JSONDecoder
from typing import Any, NamedTuple

from kombu import Exchange, Queue
from kombu.exceptions import EncodeError
from kombu.utils import json

from onejob.celery.option_declarations import CALL_OPTIONS
from onejob.errors import InvalidPayloadError, JobFailedError, clean, message_of
from onejob.jobs.model import JobRow
from onejob.jobs.text_limits import TextLimits
from onejob.uniqueness.canonical_json import KOMBU_KEYS, plain_encoder

# --- calls -----------------------------------------------------------------------------------------------------------


TRANSIENT = frozenset(
    "producer publisher connection router retry retry_policy result_cls add_to_parent countdown eta expires task_type "
    "retries".split()
).union(CALL_OPTIONS)
"""The options that apply to one publication, or that the ledger stores in columns of their own."""
CANVAS = ("link", "link_error", "chain", "chord", "group_id")
"""The options that make a canvas wait for the end of the job."""
MARK = "onejob_job"
"""The header of a message that the ledger has published: the id of its job, so that a copy marks no other job."""
SUBMITTER_HEADER = "onejob_submitter"
"""The header of a message with the name of its submitter, if the submitter has own jobs."""
OWN_HEADERS = (MARK, "onejob_claim")
ENVELOPE_DEPTH = 3
"""How many levels deeper a message is nested than the arguments in it."""
_ESCAPE = re.compile(r"\\(?:ud[89ab]..\\ud[c-f]..|(?P<bad>u0000|ud[89a-f]..)|.)")
"""An escape in JSON as Python writes it: a pair of surrogates is one character, a lone surrogate is invalid."""
PREVIEW = 120
"""How many characters of the arguments a list of jobs shows."""
REPLACED = "replaced by another task, whose end it gets"
"""The reason of a job whose id `Task.replace` gave to a task that does not run at once, or not in the ledger."""


class Message(NamedTuple):
    """The content of a payload. `task` is the job's own task, unless `Task.replace` replaced it by another."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    replaced_by: list[str] | None = None
    """The ids of the tasks that come before the replacement, for a job that waits for its replacement."""
    context: Mapping[str, Any] = {}
    """The headers that the application has added to the message, see `celery/messages/context.py`."""
    window: list[Any] | None = None
    """The limits of the calendar window in which the job was submitted, see `uniqueness/window.py`."""


def encode(
    task: str, args: Sequence[Any], kwargs: Mapping[str, Any], limits: TextLimits,
    context: Mapping[str, Any] | None = None, window: list[Any] | None = None,
) -> str:  # fmt: skip
    """Return the payload of a job. Raises `InvalidPayloadError` as `dumps` does."""
    call = {"task": task, "args": list(args), "kwargs": dict(kwargs)}
    if context:
        call["context"] = context
    if window is not None:
        call["window"] = window
    return dumps(call, "the arguments", limits)


def decode(payload: str) -> Message:
    """Return the message in a payload of `encode`."""
    return Message(**loads(payload))


def read_message(job: JobRow) -> Message | None:
    """Return the message in the payload of a job; None if another version has written it, in a rolling deployment."""
    try:
        message = decode(job.payload)
    except (TypeError, ValueError, RecursionError):
        return None
    return message if isinstance(message.args, list) and isinstance(message.kwargs, dict) else None


def preview(arguments: Any) -> str:
    """Return arguments on one line, as in a call, cut to `PREVIEW` characters."""
    match arguments:
        case {"args": list(args), "kwargs": dict(kwargs)}:
            text = ", ".join([*map(_plain, args), *(f"{name}={_plain(value)}" for name, value in kwargs.items())])
        case None | str():
            text = arguments or ""
        case _:
            text = _plain(arguments)
    return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"


def _plain(value: object) -> str:
    """Return a value as JSON, with times as the texts that kombu stores, so that a search for such a text finds it."""
    return plain_json.dumps(
        value, ensure_ascii=False, default=lambda each: each.isoformat() if isinstance(each, datetime) else str(each)
    )


def encode_options(options: Mapping[str, Any], limits: TextLimits) -> str:
    """Return the JSON of the publish options, without the `TRANSIENT` options. Raises as `encode` does."""
    stored = {
        name: value.name if isinstance(value, Exchange | Queue) else value
        for name, value in options.items()
        if name not in TRANSIENT and value is not None
    }
    if isinstance(headers := stored.get("headers"), Mapping):  # a retry copies those of its message
        stored["headers"] = {name: value for name, value in headers.items() if name not in OWN_HEADERS}
    return dumps(stored, "the options", limits)


def dumps(value: object, what: str, limits: TextLimits) -> str:
    """Return JSON for every store. Raises `InvalidPayloadError`, naming `what`, for no JSON, too deep or too large."""
    try:
        text = to_json(value)
    except (TypeError, ValueError, RecursionError, EncodeError) as error:
        hint = ""
        if "is not JSON serializable" in str(error):
            hint = ". Dataclasses and pydantic models can be stored with typed=True, the default of @onejob.task"
        raise InvalidPayloadError(f"{what} cannot be stored as JSON: {error}{hint}") from error
    if '"__type__"' in text and has_type_of_kombu(value):
        msg = (
            f"{what} cannot be stored: a mapping with only the keys '__type__' and '__value__' is how Celery's JSON "
            "writes a time, a UUID and other types, and would be read as one. Rename one of the keys"
        )
        raise InvalidPayloadError(msg)
    if ("\\u0000" in text or "\\ud" in text) and any(escape["bad"] for escape in _ESCAPE.finditer(text)):
        msg = f"{what} cannot be stored with a NUL character or a lone surrogate: remove it, or encode the bytes"
        raise InvalidPayloadError(msg)
    if text.count("[") + text.count("{") > limits.depth and deeper_than(loads(text), limits.depth + ENVELOPE_DEPTH):
        msg = f"{what} cannot be stored: nested deeper than {limits.depth} levels, which not every JSON parser accepts"
        raise InvalidPayloadError(msg)
    if len(text) > limits.size:
        raise InvalidPayloadError(
            f"{what} cannot be stored: {len(text)} bytes as JSON, and the limit is {limits.size}: "
            "store them elsewhere and pass a reference"
        )
    return text


def has_type_of_kombu(value: object) -> bool:
    """Return whether a dict in a value has just the keys by which kombu's JSON knows a value of another type."""
    return any(isinstance(each, dict) and each.keys() == KOMBU_KEYS for level in levels_of(value) for each in level)


def deeper_than(value: object, levels: int) -> bool:
    """Return whether a JSON value is nested deeper than `levels`."""
    return any(depth > levels for depth, _ in enumerate(levels_of(value)))


def levels_of(value: object) -> Iterator[Sequence[object]]:
    """Yield the values in a JSON value level by level, the value itself first; not recursive: any depth is safe."""
    level = [value]
    while level:
        yield level
        level = [child for each in level for child in _children(each)]


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


_encode_plain = plain_encoder(ascii_only=True, sort_keys=False, separators=(", ", ": "))


def to_json(value: object) -> str:
    """Return the text of kombu's `json.dumps`, which is slower for plain values. Raises as that, and for NaN."""
    try:
        return "".join(_encode_plain(value, 0))
    except TypeError:
        return str(json.dumps(value, cls=_Encoder, allow_nan=False))


class _Encoder(json.JSONEncoder):
    """The encoder of `to_json`: writes bytes with a NUL character as base64; kombu would write them as text."""

    def default(self, o: Any) -> Any:
        if isinstance(o, bytes) and b"\0" in o:
            return {"__type__": "base64", "__value__": b64encode(o).decode()}
        return super().default(o)


loads: Callable[[str], Any] = JSONDecoder(object_hook=json.object_hook).decode
"""The function that reads a JSON text of `dumps`; kombu's `json.loads` would build a decoder for each text."""


def replacement_depth(options: str) -> int:
    """Return how often `Task.replace` has passed on the id of a job with these options (JSON)."""
    return int(loads(options).get("replaced_task_nesting") or 0)


def has_canvas(options: Mapping[str, Any]) -> bool:
    """Return whether a canvas (links, chain, chord) waits for the end of a job with these options."""
    return any(options.get(name) for name in CANVAS)


# --- failures --------------------------------------------------------------------------------------------------------


MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000


class Ignored(NamedTuple):
    """The result of a message of which Celery must record nothing."""

    reason: str


def encode_failure(error: BaseException) -> str:
    """Return the JSON of an exception: module, type, message, args (when JSON has them) and traceback."""
    return to_json({
        "module": type(error).__module__, "type": type(error).__qualname__,
        "message": message_of(error)[:MESSAGE_LIMIT], "args": _args(error),
        "traceback": clean("".join(traceback.format_exception(error)))[-TRACEBACK_LIMIT:],
    })  # fmt: skip


def decode_failure(job_id: str, text: str | None) -> BaseException:
    """Return the exception in a text of `encode_failure`."""
    failure: dict[str, Any] = json.loads(text) if text else {"type": "unknown", "message": ""}
    error_class: object = sys.modules.get(str(failure.get("module")))
    for part in str(failure.get("type")).split("."):
        error_class = getattr(error_class, part, None)
    if isinstance(error_class, type) and issubclass(error_class, Exception):
        args = failure.get("args")
        with suppress(Exception):  # a class may reject these arguments
            return error_class(*args) if args is not None else error_class(failure.get("message"))
    return JobFailedError(job_id, str(failure.get("type")), str(failure.get("message")))


def _args(error: BaseException) -> list[Any] | None:
    try:
        text = json.dumps(list(error.args), allow_nan=False)
    except Exception:  # noqa: BLE001 - any exception must be storable, whatever its arguments are
        return None
    if len(text) > MESSAGE_LIMIT or clean(text) != text or has_type_of_kombu(error.args):
        return None
    return list(error.args)
