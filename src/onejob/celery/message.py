"""What travels through the broker: a job's arguments and options as JSON, kept in the ledger, published from there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.exceptions import EncodeError
from kombu.utils import json

from onejob.errors import InvalidPayloadError
from onejob.uniqueness.canonical_json import deeper_than

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.uniqueness.canonical_json import Limits

TRANSIENT = frozenset(
    "producer publisher connection router retry retry_policy result_cls add_to_parent countdown eta expires task_id "
    "task_type retries".split()
)
"""Options of one publication, or facts that the ledger keeps in columns of their own."""
CANVAS = ("link", "link_error", "chain", "chord", "group_id")
"""Options by which something else waits for the end of the job."""
WRAPPING = 3
"""By how many levels a message is deeper than the arguments in it."""
_ESCAPE = re.compile(r"\\(?:ud[89ab]..\\ud[c-f]..|(?P<bad>u0000|ud[89a-f]..)|.)")
"""An escape in JSON as Python writes it: a pair of surrogates is one character, one alone is none."""
REPLACED = "replaced"
"""Why a job was canceled whose id belongs to another task's message now (`Task.replace`)."""


class Message(NamedTuple):
    """The content of a payload. `task` is the job's own task, unless the job was replaced by a run of another."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]


def encode(task: str, args: Sequence[Any], kwargs: Mapping[str, Any], limits: Limits) -> str:
    """Return the payload of a job. Raises `InvalidPayloadError` for what JSON cannot carry or the ledger will not."""
    return dumps({"task": task, "args": list(args), "kwargs": dict(kwargs)}, "the arguments", limits)


def decode(payload: str) -> Message:
    """Return what `encode` was given."""
    return Message(**json.loads(payload))


def encode_options(options: Mapping[str, Any], limits: Limits) -> str:
    """Return how a job's message is sent, without what the ledger knows by itself. Raises as `encode` does."""
    kept = {name: _plain(value) for name, value in options.items() if name not in TRANSIENT and value is not None}
    return dumps(kept, "the options", limits)


def dumps(value: object, what: str, limits: Limits) -> str:
    """Return JSON that every store can hold, also as PostgreSQL's `jsonb`.

    Raises `InvalidPayloadError`, naming `what`, when the value has no such JSON or is too large.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError, EncodeError) as error:
        msg = f"{what} cannot be stored as JSON: {error}"
        raise InvalidPayloadError(msg) from error
    if _has_unstorable(text):
        msg = (
            f"{what} have a NUL character or a lone surrogate, which stores cannot keep: remove it, or encode the bytes"
        )
        raise InvalidPayloadError(msg)
    if text.count("[") + text.count("{") > limits.depth and deeper_than(loads(text), limits.depth + WRAPPING):
        msg = f"{what} are nested deeper than {limits.depth} levels, which not every reader of JSON can follow"
        raise InvalidPayloadError(msg)
    if size > limits.size:
        msg = f"{what} take {size} bytes as JSON, the limit is {limits.size}: store them elsewhere and pass a reference"
        raise InvalidPayloadError(msg)
    return str(text)


def _has_unstorable(text: str) -> bool:
    """Tell whether JSON has a NUL character or a lone surrogate; most texts have nothing that looks like one."""
    suspicious = "\\u0000" in text or "\\ud" in text
    return suspicious and any(escape["bad"] for escape in _ESCAPE.finditer(text))


def loads(text: str) -> Any:
    """Return the value of a JSON text of `dumps`."""
    return json.loads(text)


def nesting(options: str) -> int:
    """Return how many replacements lie before a job under its id."""
    return int(loads(options).get("replaced_task_nesting") or 0)


def waits_for_end(options: str) -> bool:
    """Tell whether something waits for the end of the job with these options."""
    return has_canvas(loads(options))


def has_canvas(options: Mapping[str, Any]) -> bool:
    """Tell whether something waits for the end of the job."""
    return any(options.get(name) for name in CANVAS)


def _plain(value: Any) -> Any:
    """A queue or an exchange travels by its name."""
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and hasattr(value, "declare") else value
