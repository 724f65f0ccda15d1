"""Who asks: the name that a caller gives itself, for the duplicates of its submissions."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from onejob.errors import InvalidArgumentsError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_LIMIT = 255
"""How many characters the name of a submitter, a step or an effect, or an idempotency key may have."""
_submitter: ContextVar[str] = ContextVar("onejob_submitter", default="")


@contextmanager
def submitter(name: str) -> Iterator[None]:
    """Let the submissions in a block be those of `name` ("user:42"): their duplicates say so.

    Idempotency keys are each submitter's own. Raises `InvalidArgumentsError` for what is no printable text.
    """
    check_name("a submitter", name)
    mark = _submitter.set(name)
    try:
        yield
    finally:
        _submitter.reset(mark)


def current_submitter() -> str:
    """Return the name of whoever submits here; "" when nobody has said."""
    return _submitter.get()


def scoped_key(key: object) -> str:
    """Return an idempotency key as the ledger knows it, apart from the keys of other submitters.

    Raises `InvalidArgumentsError` for what is no printable text.
    """
    check_name("an idempotency key", key)
    name = current_submitter()
    return f"{len(name)}:{name}:{key}"


def check_name(kind: str, name: object) -> None:
    """Raise `InvalidArgumentsError` for what cannot name a submitter, a submission, a step or an effect."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        msg = f"{kind} is named by a printable text of at most {NAME_LIMIT} characters, not {name!r:.300}"
        raise InvalidArgumentsError(msg)
