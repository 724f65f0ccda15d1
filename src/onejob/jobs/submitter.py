"""The submitter: a name for the caller that its submissions and duplicates are recorded with."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from onejob.errors import InvalidArgumentsError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_LIMIT = 255
"""Maximum characters of the name of a submitter, a step or an effect, and of an idempotency key."""
_submitter: ContextVar[str] = ContextVar("onejob_submitter", default="")


@contextmanager
def submitter(name: str) -> Iterator[None]:
    """Set the submitter of all submissions within a block, e.g. "user:42".

    Each submitter has its own idempotency keys. Raises `InvalidArgumentsError` unless the name is printable.
    """
    check_name("a submitter", name)
    reset_token = _submitter.set(name)
    try:
        yield
    finally:
        _submitter.reset(reset_token)


def current_submitter() -> str:
    """Return the submitter of this context; "" outside of `submitter`."""
    return _submitter.get()


def scoped_key(key: object) -> str:
    """Return an idempotency key in the scope of the current submitter, as the ledger stores it.

    Raises `InvalidArgumentsError` unless the key is printable.
    """
    check_name("an idempotency key", key)
    scope = current_submitter()
    return f"{len(scope)}:{scope}:{key}"


def check_name(kind: str, name: object) -> None:
    """Raise `InvalidArgumentsError` unless `name` is a printable string of up to `NAME_LIMIT` characters."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        msg = f"{kind} must be a printable string of at most {NAME_LIMIT} characters, not {name!r:.300}"
        raise InvalidArgumentsError(msg)
