"""The meaning of an error of a store's driver: a verdict, a sentence, and the exception that follows from both.

Each store has one table of rules in its `errors.py`; whoever handles an error of its driver asks that table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from onejob.errors import (
    StoreBusyError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)


class Verdict(StrEnum):
    """The cause of a driver's error, which says who can mend it."""

    OURS = "ours"
    """A bug of onejob: report it."""
    VALUE = "value"
    """A value of this write can never be stored; to repeat the write is no use."""
    OPERATOR = "operator"
    """A right, the schema, a disk or a setting: it stays until an operator acts."""
    OUTAGE = "outage"
    """The store is away for a while."""
    BUSY = "busy"
    """Another transaction, or a time limit, was in the way: the same call may succeed a moment later."""
    STALE = "stale"
    """A statement that the connection prepared is older than the schema: a new connection can repeat the operation."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The meaning of one kind of error."""

    verdict: Verdict
    text: str
    """The words for what the store did: they stand in messages between the store's name and the driver's message."""
    remedy: str = ""
    """The remedy, as a sentence; "" where the text says it."""
    repeats: bool = False
    """Whether the store itself repeats the operation, a few times, before it raises."""


AWAY = Rule(Verdict.OUTAGE, "did not answer", repeats=True)
OURS = Rule(Verdict.OURS, "refused")
VALUE = Rule(Verdict.VALUE, "refused")

EXCEPTIONS: dict[Verdict, type[StoreError]] = {
    Verdict.OURS: StoreError,
    Verdict.VALUE: StoreRefusedError,
    Verdict.OPERATOR: StoreUnusableError,
    Verdict.OUTAGE: StoreUnavailableError,
    Verdict.BUSY: StoreBusyError,
    Verdict.STALE: StoreUnavailableError,
}


def store_error(rule: Rule, store: str, error: BaseException, hint: str = "") -> StoreError:
    """Return the exception for a driver's error; `store` is the subject of its message, `hint` a further sentence."""
    sentences = (f"{store} {rule.text}: {str(error).strip().removesuffix('.')}", rule.remedy, hint)
    translated = EXCEPTIONS[rule.verdict](". ".join(each for each in sentences if each))
    translated.__cause__ = error
    return translated


def explain(error: BaseException, rule: Rule, store: str) -> None:
    """Add to a driver's error, raised in a user's transaction, a note that says what it means and what to do."""
    again = rule.verdict in {Verdict.OUTAGE, Verdict.BUSY, Verdict.STALE}
    if again or rule.remedy:  # otherwise the driver has said all
        sentences = (f"{store} {rule.text}", rule.remedy, "Roll back, and repeat the transaction" * again)
        error.add_note(". ".join(each for each in sentences if each))
