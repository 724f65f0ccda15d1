"""Limits and their keys, as every front end shows and changes them."""

from __future__ import annotations

from dataclasses import dataclass

from onejob.errors import ConfigurationError, InvalidLimitError
from onejob.jobs.limits import KEY_LENGTH, LimitValue, value_of_text
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.limits import LimitState


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """A limit or one of its keys: how much room it has, by what, and who uses it. Times in seconds."""

    key: str
    """The name of a limit, such as `customer`, or one of its keys, such as `customer=42`."""
    value: str | None
    """How many jobs may run at once, or a rate: `3`, `90000/minute`. None: nothing limits the key."""
    default: str | None
    """The value of the definition; None: no task defines the limit any more."""
    is_exception: bool
    """Whether an exception is in force, of the key or of its name."""
    until: float | None
    """When the exception ends by itself; None: not before it is cleared."""
    use: str
    """The use as text: `3 of 3 run`; empty for a name that no job has as its key."""
    waiting: int
    """How many jobs wait for room."""
    holders: tuple[str, ...]
    """The ids of the jobs that have a slot, at most 100; of a rate those that are about to run."""


def row_of(state: LimitState) -> LimitRow:
    """Return the state of a key as front ends show it."""
    value, use = state.value, state.use
    is_exception = value is not None and not value.is_default
    return LimitRow(
        key=state.key, value=None if value is None else value.text,
        default=None if state.default is None else state.default.text, is_exception=is_exception,
        until=None if value is None else value.until, use=state.used_text, waiting=use.waiting,
        holders=tuple(state.holders),
    )  # fmt: skip


def new_exception(key: str, text: str, *, until: float | None = None) -> LimitValue:
    """Return an exception for a name or a key: `5` running jobs, `0` to stop it, or a rate such as `90/minute`.

    `until`: when it ends by itself, in seconds since the epoch; None: never. Raises `InvalidLimitError`.
    """
    if not 0 < len(key) <= KEY_LENGTH or not key.isprintable():
        raise InvalidLimitError(f"{key!r:.100} is no key: write customer or customer=42, at most {KEY_LENGTH} letters")
    try:
        return value_of_text(key, text, until=until)
    except ConfigurationError as error:
        raise InvalidLimitError(str(error)) from None


def describe_value(key: str, value: LimitValue | None) -> str:
    """Return a sentence about the value of a key, without its full stop."""
    return f"nothing limits {key}" if value is None else f"{key} has {value.description}"


def shown_exception(text: str, until: float | None) -> str:
    """Return an exception as text for the audit log, which has its key as the target."""
    return f"value={text}" + ("" if until is None else f" until={format_timestamp(until)}")
